// The exact queries of a datastore: longest suffix match, draft tree and count.
#pragma once

#include "trees/tree_cache.hpp"

namespace rest_store {

// Thread-safe: shards are read-only, the cache synchronizes itself.
class Kernel {
 public:
  // What a query works with; it keeps its memory for later ones.
  struct Scratch {
    Matcher matcher;
    Drafter drafter;
  };

  Kernel(std::vector<ShardView> shards, std::uint32_t vocabulary)
      : shards_(std::move(shards)), vocabulary_(vocabulary) {}

  std::uint32_t vocabulary() const { return vocabulary_; }
  std::uint32_t width() const { return shards_[0].width; }

  // The longest match of a context that ends with `suffix`; valid until the next query with this
  // scratch.
  const Match& match(const Suffix& suffix, Scratch& scratch) {
    return scratch.matcher.longest(shards_, suffix);
  }

  TreeCache::Tree draft(const Suffix& suffix, const Limits& limits, Scratch& scratch) {
    const Match& match = this->match(suffix, scratch);
    const auto make = [&] {
      return std::make_shared<const MatchTree>(
          scratch.drafter.draft(shards_, match, vocabulary_, limits));
    };
    if (match.count < TreeCache::kHeavy) return make();
    const auto* const tokens = reinterpret_cast<const char*>(suffix.last(match.length));
    std::string key = TreeCache::key({tokens, std::size_t{match.length} * suffix.width}, limits);
    TreeCache::Tree tree = trees_.find(key);
    if (tree == nullptr) {
      tree = make();
      trees_.insert(std::move(key), tree);
    }
    return tree;
  }

  // Occurrences of a token sequence.
  std::uint64_t count(const Suffix& tokens) const {
    std::vector<Search> searches;
    for (const ShardView& shard : shards_)
      searches.emplace_back(shard, tokens.last(tokens.length), tokens.length * tokens.width);
    std::vector<std::uint8_t> occurs;
    locate(searches, 1, occurs);
    if (!occurs[0]) return 0;
    std::uint64_t total = 0;
    for (const Search& search : searches) {
      Boundary pair[2];
      interval_boundaries(search, pair);
      find_boundaries(std::span<Boundary>(pair));
      total += std::max(pair[0].low, pair[1].low) - pair[0].low;
    }
    return total;
  }

 private:
  std::vector<ShardView> shards_;
  std::uint32_t vocabulary_;
  TreeCache trees_;
};

}  // namespace rest_store
