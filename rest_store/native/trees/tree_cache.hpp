// A cache of the trees of heavy matches: those with many occurrences are few, recur often, and cost the most to draft.
//
// Kernels share a cache if the later one has all documents of the earlier one, and others perhaps. A match that occurs
// as often in both occurs in the same places, so its tree is the same. One that occurs more often is drafted anew, and
// each node of the tree before occurs as often as there, at least.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "search/fork_mutex.hpp"
#include "trees/packed_tree.hpp"

namespace rest_store {

// A set-associative hash table of bounded size: a new tree replaces the older one of its match, or else the one with
// the fewest occurrences in its set. Thread-safe.
class TreeCache {
 public:
  static constexpr std::uint64_t kHeavy = 64;  // occurrences from which on a tree is worth caching

  // The latest tree of the matches of `tokens`, in the byte order of a tokens file; null if none is cached.
  std::shared_ptr<const PackedTree> lookup(std::string_view tokens, const Limits& limits) {
    const std::uint64_t hash = hash_of(tokens, limits);
    Stripe& stripe = stripes_[hash % kStripes];
    const std::lock_guard lock(stripe.mutex);
    if (stripe.entries.empty()) return nullptr;
    for (const Entry& entry : stripe.set_of(hash))
      if (entry.is_of(tokens, limits)) return entry.tree;
    return nullptr;
  }

  void insert(std::string_view tokens, const Limits& limits, std::shared_ptr<const PackedTree> tree) {
    const std::uint64_t hash = hash_of(tokens, limits);
    Stripe& stripe = stripes_[hash % kStripes];
    const std::lock_guard lock(stripe.mutex);
    stripe.entries.resize(kSets * kWays);
    const std::span<Entry> set = stripe.set_of(hash);
    auto place = std::find_if(set.begin(), set.end(), [&](const Entry& one) { return one.is_of(tokens, limits); });
    if (place == set.end())
      place = std::min_element(set.begin(), set.end(),
                               [](const Entry& a, const Entry& b) { return a.occurrences() < b.occurrences(); });
    else if (place->occurrences() >= tree->match_count)
      return;  // another thread has inserted it meanwhile, or that of a later kernel
    stripe.replace(*place, {limits, std::string(tokens), std::move(tree)});
    while (stripe.bytes > kBytes) stripe.replace(stripe.entries[stripe.hand++ % stripe.entries.size()], {});
  }

 private:
  static constexpr std::size_t kStripes = 16;                    // each with a lock of its own
  static constexpr std::size_t kSets = 128;                      // in a stripe
  static constexpr std::size_t kWays = 8;                        // entries of a set
  static constexpr std::size_t kBytes = std::size_t{640} << 10;  // of trees in a stripe; 10 MB in all

  struct Entry {
    Limits limits{};
    std::string tokens;
    std::shared_ptr<const PackedTree> tree;  // null: free

    bool is_of(std::string_view match, const Limits& within) const {
      return tree != nullptr && limits == within && tokens == match;
    }
    std::uint64_t occurrences() const { return tree == nullptr ? 0 : tree->match_count; }
    std::size_t bytes() const { return tree == nullptr ? 0 : tokens.size() + tree->nodes.size() + sizeof(PackedTree); }
  };

  struct Stripe {
    ForkMutex mutex;
    std::vector<Entry> entries;  // empty until the first insert
    std::size_t bytes = 0;
    std::size_t hand = 0;  // the entry to evict next while there are too many bytes

    std::span<Entry> set_of(std::uint64_t hash) {
      return std::span(entries).subspan(hash / kStripes % kSets * kWays, kWays);
    }

    void replace(Entry& old, Entry entry) {
      bytes += entry.bytes();
      bytes -= old.bytes();
      old = std::move(entry);
    }
  };

  static std::uint64_t hash_of(std::string_view tokens, const Limits& limits) {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
    const std::uint64_t hash = (std::hash<std::string_view>()(tokens) ^ limits.max_nodes) * kFactor;
    return (hash ^ hash >> 29 ^ limits.max_depth) * kFactor >> 16;
  }

  std::array<Stripe, kStripes> stripes_;
};

}  // namespace rest_store
