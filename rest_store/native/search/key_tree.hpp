// The upper levels of the binary searches in all shards' keys, searched once for all shards.
#pragma once

#include <bit>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "search/shard_view.hpp"

namespace rest_store {

// A binary tree over evenly spaced keys of the largest shard, each with the place that it has among the keys of every
// shard. Filled where searches come by, so that opening costs nothing. Thread-safe: what two threads write into one
// node at once is the same.
class KeyTree {
 public:
  // One pattern on its way down: `node` is 1 and then, for each level, whether its key is less than `least`.
  struct Walk {
    std::uint64_t least;
    std::size_t node = 1;

    // The nodes with the nearest keys known to be less, and not less; 0: none.
    std::size_t below() const { return node >> 1 >> std::countr_zero(node); }
    std::size_t above() const { return node >> 1 >> std::countr_one(node); }
  };

  explicit KeyTree(const std::vector<ShardView>& shards) : shards_(shards) {
    const auto by_keys = [](const ShardView& a, const ShardView& b) { return a.key_count < b.key_count; };
    largest_ = &*std::max_element(shards_.begin(), shards_.end(), by_keys);
    if (largest_->key_count > ~std::uint32_t{0}) return;
    const std::uint64_t nodes = std::min({kNodes, kPlaces / shards_.size(), std::size_t{largest_->key_count}});
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

  // The place of the first key of a shard that is not less than a walk's pattern lies in begin .. end.
  Interval places(const Walk& walk, std::size_t shard) const {
    const std::size_t below = walk.below(), above = walk.above();
    const std::uint64_t begin = below == 0 ? 0 : place(below, shard);
    const std::uint64_t end = above == 0 ? shards_[shard].key_count : place(above, shard);
    return {begin, std::max(begin, end)};
  }

 private:
  static constexpr std::size_t kNodes = std::size_t{1} << 15;   // at most, of one key (8 bytes) each
  static constexpr std::size_t kPlaces = std::size_t{1} << 17;  // at most, in all nodes, of 4 bytes each

  template <class Value>
  struct Free {
    void operator()(Value* values) const { std::free(values); }
  };
  template <class Value>
  using Values = std::unique_ptr<Value[], Free<Value>>;

  // Memory that takes none until it is written.
  template <class Value>
  static Values<Value> zeros(std::size_t count) {
    void* values = std::calloc(count, sizeof(Value));
    if (values == nullptr) throw std::bad_alloc();
    return Values<Value>(static_cast<Value*>(values));
  }

  std::uint64_t place(std::size_t node, std::size_t shard) const {
    return __atomic_load_n(&places_[node * shards_.size() + shard], __ATOMIC_RELAXED);
  }

  // Find the places of the key of `walk.node`, which is of `level`; return one more than the key, as nodes hold it.
  std::uint64_t fill(const Walk& walk, std::uint32_t level) {
    const std::uint64_t along = 2 * (walk.node - (std::size_t{1} << level)) + 1;
    const std::uint64_t key = largest_->keys[along * largest_->key_count >> (level + 1)];
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      const Interval within = places(walk, shard);
      const std::uint64_t* keys = shards_[shard].keys;
      const auto found = std::lower_bound(keys + within.begin, keys + within.end, key) - keys;
      __atomic_store_n(&places_[walk.node * shards_.size() + shard], static_cast<std::uint32_t>(found),
                       __ATOMIC_RELAXED);
    }
    __atomic_store_n(&keys_[walk.node], key + 1, __ATOMIC_RELEASE);
    return key + 1;
  }

  const std::vector<ShardView>& shards_;
  const ShardView* largest_;
  std::uint32_t levels_ = 0;
  Values<std::uint64_t> keys_;  // of each node, and one more; 0: not yet filled
  Values<std::uint32_t> places_;
};

}  // namespace rest_store
