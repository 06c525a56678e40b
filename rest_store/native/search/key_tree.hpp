// The upper levels of the binary search for a key, shared by all shards: one descent bounds the search in each of them.
#pragma once

#include <bit>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "search/shard_view.hpp"

namespace rest_store {

// A binary tree over evenly spaced keys of the largest shard. Each node holds its key and the index of that key among
// the keys of every shard. Nodes are filled on the first visit, so that opening a datastore costs nothing. Thread-safe:
// threads that fill a node at the same time write the same values.
class KeyTree {
 public:
  // The descent of one pattern. The bits of `node`, from the highest, are 1 and then for each level whether the key
  // there was less than `least`.
  struct Walk {
    std::uint64_t least;
    std::size_t node = 1;

    // The nodes of the nearest key known to be less than `least`, and of the nearest not less; 0 if there is none.
    std::size_t below() const { return node >> 1 >> std::countr_zero(node); }
    std::size_t above() const { return node >> 1 >> std::countr_one(node); }
  };

  explicit KeyTree(const std::vector<ShardView>& shards) : shards_(shards) {
    const auto by_keys = [](const ShardView& a, const ShardView& b) { return a.key_count < b.key_count; };
    largest_ = &*std::max_element(shards_.begin(), shards_.end(), by_keys);
    if (largest_->key_count > ~std::uint32_t{0}) return;
    const bool in_files =
        std::all_of(shards_.begin(), shards_.end(), [](const ShardView& shard) { return shard.in_files; });
    const std::size_t most = in_files ? kNodes : kFewNodes;
    const std::uint64_t nodes = std::min({most, kPlaces / shards_.size(), std::size_t{largest_->key_count}});
    levels_ = static_cast<std::uint32_t>(std::bit_width(nodes | 1) - 1);
    keys_ = zeros<std::uint64_t>(std::size_t{1} << levels_);
    places_ = zeros<std::uint32_t>(shards_.size() << levels_);
  }

  // Take every walk to the lowest level.
  void descend(std::span<Walk> walks) {
    for (std::uint32_t level = 0; level < levels_; ++level)
      for (Walk& walk : walks) {
        std::uint64_t after = __atomic_load_n(&keys_[walk.node], __ATOMIC_ACQUIRE);
        if (after == 0) after = fill(walk, level);
        walk.node = 2 * walk.node + (after - 1 < walk.least);
      }
  }

  // Bounds begin .. end on the index, in one shard, of the first key that is not less than the pattern of `walk`.
  Interval places(const Walk& walk, std::size_t shard) const {
    const std::size_t below = walk.below(), above = walk.above();
    const std::uint64_t begin = below == 0 ? 0 : place(below, shard);
    const std::uint64_t end = above == 0 ? shards_[shard].key_count : place(above, shard);
    return {begin, std::max(begin, end)};
  }

 private:
  static constexpr std::size_t kNodes = std::size_t{1} << 15;  // at most, with a key of 8 bytes each
  static constexpr std::size_t kFewNodes = 32;  // for shards that are soon replaced: filling more would not pay
  static constexpr std::size_t kPlaces = std::size_t{1} << 17;  // indices of 4 bytes in all nodes, at most

  template <class Value>
  struct Free {
    void operator()(Value* values) const { std::free(values); }
  };
  template <class Value>
  using Values = std::unique_ptr<Value[], Free<Value>>;

  // Zeros that take no physical memory until they are written.
  template <class Value>
  static Values<Value> zeros(std::size_t count) {
    void* values = std::calloc(count, sizeof(Value));
    if (values == nullptr) throw std::bad_alloc();
    return Values<Value>(static_cast<Value*>(values));
  }

  std::uint64_t place(std::size_t node, std::size_t shard) const {
    return __atomic_load_n(&places_[node * shards_.size() + shard], __ATOMIC_RELAXED);
  }

  // Fill `walk.node`, which is on `level`. Returns the key plus one, as nodes store it.
  std::uint64_t fill(const Walk& walk, std::uint32_t level) {
    const std::uint64_t fraction = 2 * (walk.node - (std::size_t{1} << level)) + 1;
    const std::uint64_t key = largest_->keys[fraction * largest_->key_count >> (level + 1)];
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      const Interval within = places(walk, shard);
      const std::uint64_t* keys = shards_[shard].keys;
      const auto index = std::lower_bound(keys + within.begin, keys + within.end, key) - keys;
      __atomic_store_n(&places_[walk.node * shards_.size() + shard], static_cast<std::uint32_t>(index),
                       __ATOMIC_RELAXED);
    }
    __atomic_store_n(&keys_[walk.node], key + 1, __ATOMIC_RELEASE);
    return key + 1;
  }

  const std::vector<ShardView>& shards_;
  const ShardView* largest_;
  std::uint32_t levels_ = 0;
  Values<std::uint64_t> keys_;  // of each node, plus one; 0: not filled yet
  Values<std::uint32_t> places_;
};

}  // namespace rest_store
