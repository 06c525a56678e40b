// What the parts of the Python module share.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "search/shard_view.hpp"

// The shards of a datastore, objects of rest_store.datastore.shard_view.ShardView; they own nothing.
std::vector<rest_store::ShardView> shard_views(const nanobind::list& shards);

// Add the classes and functions of each part to the module, in this order.
void bind_calibrations(nanobind::module_& module);
void bind_sessions(nanobind::module_& module);
