// The exact queries of a datastore: longest suffix match, draft tree and count.
#pragma once

#include "trees/tree_cache.hpp"

namespace rest_store {

// Thread-safe with a scratch for each thread: shards are read-only, and the cache synchronizes
// itself.
class Kernel {
 public:
  // Buffers of a query, reused by the next. One query uses them at a time.
  struct Scratch {
    Matcher matcher;
    Drafter drafter;
  };

  // `shards`: of the datastore, at least one; the memory that they point to outlives the kernel.
  // `vocabulary`: tokens are below it. `sharing`: limits the reader, one group for each shard;
  // null: it may learn of everything.
  Kernel(std::vector<ShardView> shards, std::uint32_t vocabulary,
         std::shared_ptr<const Sharing> sharing)
      : shards_(std::move(shards)), vocabulary_(vocabulary), sharing_(std::move(sharing)) {}

  std::uint32_t vocabulary() const { return vocabulary_; }
  std::uint32_t width() const { return shards_[0].width; }  // bytes of a token

  // The longest match of a context that ends with `suffix`; valid until the next query with this
  // scratch.
  const Match& match(const Suffix& suffix, Scratch& scratch) {
    Match& match = scratch.matcher.longest(shards_, suffix);
    if (sharing_ != nullptr) shorten(*sharing_, shards_, suffix, 0, match);
    return match;
  }

  // The tree of the continuations of that match; never null. `limits` are in range.
  TreeCache::Tree draft(const Suffix& suffix, const TreeLimits& limits, Scratch& scratch) {
    const Match& match = this->match(suffix, scratch);
    const auto make = [&] {
      return std::make_shared<const MatchTree>(
          scratch.drafter.draft(shards_, match, vocabulary_, limits, sharing_.get()));
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

  // The number of occurrences of a token sequence of which the reader may learn.
  std::uint64_t count(const Suffix& tokens) const {
    std::vector<Interval> intervals;
    find_occurrences(shards_, tokens, tokens.length, intervals);
    if (sharing_ != nullptr) return sharing_->visible(shards_, intervals).count;
    std::uint64_t total = 0;
    for (const Interval& interval : intervals) total += interval.width();
    return total;
  }

 private:
  std::vector<ShardView> shards_;
  std::uint32_t vocabulary_;
  std::shared_ptr<const Sharing> sharing_;
  TreeCache trees_;
};

}  // namespace rest_store
