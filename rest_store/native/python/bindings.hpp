// What the parts of the Python module share.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "search/shard_view.hpp"

// The shards of a datastore, given as rest_store.datastore.kernel.shard_view makes them; they own nothing.
std::vector<rest_store::ShardView> shard_views(const nanobind::list& shards);

// Add what draft sessions and calibrations need.
void bind_sessions(nanobind::module_& module);
