// Conversions for all files of the Python module: arrays of numpy as spans, vectors as bytes of
// Python, and shards.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <span>
#include <vector>

#include "search/sharing.hpp"

namespace rest_store {

namespace nb = nanobind;

template <class Item, std::size_t Dimensions = 1>
using Array = nb::ndarray<const Item, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

template <class Item>
std::span<const Item> span_of(const Array<Item>& array) {
  return {array.data(), array.size()};
}

inline std::span<const Token> tokens_of(const Array<std::int32_t>& array) {
  return {reinterpret_cast<const Token*>(array.data()), array.size()};
}

template <class Item>
nb::bytes bytes_of(const std::vector<Item>& items) {
  return nb::bytes(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item));
}

}  // namespace rest_store

// The shards of a datastore, objects of rest_store.datastore.shard.ShardView; they own nothing.
std::vector<rest_store::ShardView> shard_views(const nanobind::list& shards);

// Return the groups of these shards, or null. ValueError: they are of another number of shards.
std::shared_ptr<const rest_store::Sharing> require_sharing(
    const nanobind::list& shards, std::shared_ptr<rest_store::Sharing> sharing);

// Add the classes and functions of each file to the module, in this order.
void bind_calibrations(nanobind::module_& module);
void bind_sessions(nanobind::module_& module);
