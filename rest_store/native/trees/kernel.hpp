// The exact queries of a datastore: longest suffix match, draft tree and count.
#pragma once

#include <memory>

#include "search/file_mapping.hpp"
#include "trees/draft.hpp"
#include "trees/tree_cache.hpp"

namespace rest_store {

// Thread-safe: shards are read-only, key tree and cache synchronize themselves, and each thread has its own scratch
// memory.
class Kernel {
 public:
  Kernel(std::vector<ShardView> shards, std::uint32_t vocabulary, std::shared_ptr<TreeCache> cache)
      : shards_(std::move(shards)), vocabulary_(vocabulary), key_tree_(shards_), cache_(std::move(cache)) {}

  std::uint32_t vocabulary() const { return vocabulary_; }
  std::uint32_t width() const { return shards_[0].width; }
  const std::shared_ptr<TreeCache>& cache() const { return cache_; }

  // The longest match of a context that ends with `suffix`; valid until the thread's next query.
  const Match& match(const Suffix& suffix) { return scratch().matcher.longest(shards_, key_tree_, suffix); }

  std::shared_ptr<const PackedTree> draft(const Suffix& suffix, const Limits& limits) {
    const Match& match = this->match(suffix);
    const bool is_heavy = match.count >= TreeCache::kHeavy;
    const std::string_view tokens(reinterpret_cast<const char*>(suffix.last(match.length)),
                                  std::size_t{match.length} * suffix.width);
    std::shared_ptr<const PackedTree> tree = is_heavy ? cache_->lookup(tokens, limits) : nullptr;
    if (tree != nullptr && tree->match_count == match.count) return tree;
    // A cached tree of a match with more occurrences than here is that of a later kernel.
    const std::uint64_t least = tree != nullptr && tree->match_count < match.count ? tree->least_of(limits) : 0;
    Drafter& drafter = scratch().drafter;
    tree = std::make_shared<const PackedTree>(drafter.draft(shards_, match, vocabulary_, limits, least));
    if (drafter.holds_excess()) drafter = Drafter();
    // Once a page was lost, the tree may be of zeros, and the cache outlives these shards.
    if (is_heavy && !FileMapping::any_lost()) cache_->insert(tokens, limits, tree);
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
      find_boundaries(pair);
      total += std::max(pair[0].low, pair[1].low) - pair[0].low;
    }
    return total;
  }

 private:
  struct Scratch {
    Matcher matcher;
    Drafter drafter;
  };

  // Not inlined: otherwise the compiler looks up the address of a thread-local object at each use.
  [[gnu::noinline]] static Scratch& scratch() {
    thread_local Scratch scratch;
    return scratch;
  }

  std::vector<ShardView> shards_;
  std::uint32_t vocabulary_;
  KeyTree key_tree_;
  const std::shared_ptr<TreeCache> cache_;
};

}  // namespace rest_store
