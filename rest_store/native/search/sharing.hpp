// The occurrences that a group may learn of where a datastore is shared: all occurrences of tokens
// that enough groups wrote, and else its own.
//
// A group that may learn of a sequence may learn of every shorter sequence in it: each group that
// wrote the longer one wrote the shorter one. So answers are those of a trie with some branches cut
// off, and halving finds the longest suffix match of which the group may learn.
#pragma once

#include <array>
#include <memory>

#include "search/match.hpp"
#include "search/shard_groups.hpp"

namespace rest_store {

constexpr std::size_t kMaxSharedAfter = 64;  // the greatest number of groups that may be required

// The occurrences of a token sequence that a group may learn of.
struct VisibleOccurrences {
  std::uint64_t count = 0;
  bool is_shared = false;  // whether enough groups wrote it; else these are the reader's own
};

// Tells of which occurrences in the shards of a datastore one group may learn. Never changes, so it
// is thread-safe.
class Sharing {
 public:
  // `groups`: those of each shard. `shared_after`: so many groups have to write a sequence before
  // others learn of it, 1 .. kMaxSharedAfter. `reader`: the group that reads; null: one that wrote
  // no document.
  Sharing(std::vector<std::shared_ptr<ShardGroups>> groups, std::size_t shared_after,
          const GroupKey* reader)
      : groups_(std::move(groups)), shared_after_(shared_after) {
    for (const auto& shard : groups_)
      own_.push_back(reader == nullptr ? ShardGroups::kNoGroup : shard->number_of(*reader));
  }

  std::size_t size() const { return groups_.size(); }  // shards

  // The reader's own ranks within an interval of a shard, ascending.
  std::span<const std::uint32_t> own_ranks(std::size_t shard, const Interval& interval) const {
    return groups_[shard]->ranks_of(own_[shard], interval);
  }

  // The occurrences among `intervals`, one for each of `shards`, of which the reader may learn. All
  // are occurrences of one sequence.
  VisibleOccurrences visible(const std::vector<ShardView>& shards,
                             std::span<const Interval> intervals) const {
    std::uint64_t total = 0;
    for (const Interval& interval : intervals) total += interval.width();
    if (total >= shared_after_ && are_enough(shards, intervals)) return {total, true};
    std::uint64_t own = 0;
    for (std::size_t i = 0; i < intervals.size(); ++i)
      if (intervals[i].width() > 0) own += own_ranks(i, intervals[i]).size();
    return {own, false};
  }

 private:
  // Whether enough groups have a rank in `intervals`.
  bool are_enough(const std::vector<ShardView>& shards, std::span<const Interval> intervals) const {
    std::array<GroupKey, kMaxSharedAfter> met;
    std::size_t count = 0;
    for (std::size_t i = 0; i < intervals.size() && count < shared_after_; ++i) {
      if (intervals[i].width() == 0) continue;
      groups_[i]->for_each_group(shards[i], intervals[i], [&](GroupKey key) {
        const auto end = met.begin() + static_cast<std::ptrdiff_t>(count);
        if (std::find(met.begin(), end, key) == end) met[count++] = key;
        return count < shared_after_;
      });
    }
    return count >= shared_after_;
  }

  const std::vector<std::shared_ptr<ShardGroups>> groups_;
  const std::size_t shared_after_;
  std::vector<std::uint32_t> own_;  // the number of the reader in each shard
};

// Set `out` to the interval of the last `length` tokens of `suffix` in each shard, empty where they
// do not occur.
inline void find_occurrences(const std::vector<ShardView>& shards, const Suffix& suffix,
                             std::uint32_t length, std::vector<Interval>& out) {
  std::vector<Search> searches;
  for (const ShardView& shard : shards)
    searches.emplace_back(shard, suffix.last(length), length * suffix.width);
  std::vector<std::uint8_t> occurs;
  out.assign(shards.size(), {});
  locate(searches, 1, occurs);
  if (!occurs[0]) return;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    Boundary pair[2];
    interval_boundaries(searches[i], pair);
    find_boundaries(std::span<Boundary>(pair));
    out[i] = {pair[0].low, std::max(pair[0].low, pair[1].low)};
  }
}

// Shorten `match`, the longest of `suffix`, to the longest of which the reader may learn. The
// reader may learn of the last `least` tokens, or `least` is 0. Returns whether the match is
// shared. If no match longer than `least` is left, it has length `least`, and no count and no
// intervals.
inline bool shorten(const Sharing& sharing, const std::vector<ShardView>& shards,
                    const Suffix& suffix, std::uint32_t least, Match& match) {
  if (match.length == 0) return false;
  VisibleOccurrences visible = sharing.visible(shards, match.intervals);
  std::uint32_t absent = match.length;
  if (visible.count > 0) {
    match.count = visible.count;
    return visible.is_shared;
  }
  match = {least, 0, std::vector<Interval>(shards.size())};
  std::vector<Interval> intervals;
  while (absent - match.length > 1) {
    const std::uint32_t length = match.length + (absent - match.length) / 2;
    find_occurrences(shards, suffix, length, intervals);
    const VisibleOccurrences shorter = sharing.visible(shards, intervals);
    if (shorter.count == 0) {
      absent = length;
      continue;
    }
    visible = shorter;
    match.length = length;
    match.count = shorter.count;
    match.intervals.swap(intervals);
  }
  return visible.is_shared;
}

}  // namespace rest_store
