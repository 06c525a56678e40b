// The groups that wrote the occurrences in a shard, by rank.
//
// The groups of an interval of ranks are listed without reading all of it, as documents are listed
// by Muthukrishnan ("Efficient algorithms for document retrieval problems", SODA 2002): a group is
// met first where its previous rank lies before the interval. Minima of the previous ranks, over
// blocks of blocks, tell where such ranks are. The time grows with the number of groups that are
// listed, not with the interval.
#pragma once

#include <algorithm>
#include <span>
#include <unordered_map>
#include <vector>

#include "search/shard_view.hpp"

namespace rest_store {

// Stands for a group, in all shards of a datastore alike.
using GroupKey = std::uint64_t;

// Takes eight bytes for each token, besides the shard. Never changes, so it is thread-safe.
class ShardGroups {
 public:
  static constexpr std::uint32_t kNoGroup = ~std::uint32_t{0};

  // `shard` is read now alone. `keys`: the group of each document, in the order of the shard. If
  // there are not as many keys as documents, the file is damaged, and no occurrence has a group.
  ShardGroups(const ShardView& shard, std::span<const GroupKey> keys) {
    const std::vector<std::uint32_t> groups = groups_of_documents(keys);
    if (ends_of_documents(shard) != keys.size()) return;
    std::vector<std::uint32_t> group_at(shard.position_count);
    Position position = 0;
    for (std::size_t document = 0; document < groups.size(); ++document)
      for (; position < ends_[document]; ++position) group_at[position] = groups[document];
    const std::size_t size = shard.entry_count;
    previous_.resize(size);
    firsts_.assign(keys_.size() + 1, 0);
    for (Rank rank = 0; rank < size; ++rank) {
      const std::uint32_t group = group_at[shard.position(rank)];
      previous_[rank] = group;  // until its place is taken by the previous rank
      ++firsts_[group + 1];
    }
    for (std::size_t group = 0; group < keys_.size(); ++group) firsts_[group + 1] += firsts_[group];
    ranks_.resize(size);
    std::vector<std::uint32_t> next(firsts_.begin(), firsts_.end() - 1);
    for (Rank rank = 0; rank < size; ++rank) {
      const std::uint32_t group = previous_[rank], at = next[group]++;
      ranks_[at] = static_cast<std::uint32_t>(rank);
      previous_[rank] = at == firsts_[group] ? 0 : ranks_[at - 1] + 1;
    }
    set_minima();
    for (std::uint32_t document = 0; document < groups.size(); ++document)
      groups_.push_back(groups[document]);
  }

  // The number of the group with this key in this shard; kNoGroup: it has no document here.
  std::uint32_t number_of(GroupKey key) const {
    const auto entry = numbers_.find(key);
    return entry == numbers_.end() || ranks_.empty() ? kNoGroup : entry->second;
  }

  // The ranks of a group within `interval`, ascending.
  std::span<const std::uint32_t> ranks_of(std::uint32_t group, const Interval& interval) const {
    if (group == kNoGroup) return {};
    const auto first = ranks_.begin() + firsts_[group], last = ranks_.begin() + firsts_[group + 1];
    const auto begin = std::lower_bound(first, last, interval.begin);
    return {begin, std::lower_bound(begin, last, interval.end)};
  }

  // Call `visit(key)` once for each group with a rank in `interval`, until it returns false.
  // `shard` is that of the constructor.
  template <class Visit>
  void for_each_group(const ShardView& shard, const Interval& interval, Visit&& visit) const {
    const Rank end = std::min<Rank>(interval.end, previous_.size());
    for (Rank rank = first_met(interval.begin, end, interval.begin); rank < end;
         rank = first_met(rank + 1, end, interval.begin)) {
      const auto at = std::upper_bound(ends_.begin(), ends_.end(), shard.position(rank));
      if (at == ends_.end()) continue;
      const std::uint32_t group = groups_[static_cast<std::size_t>(at - ends_.begin())];
      if (!visit(keys_[group])) return;
    }
  }

 private:
  static constexpr std::size_t kBlock = 64;  // ranks, or minima of the level below

  // Number the groups, and return the number of each document's.
  std::vector<std::uint32_t> groups_of_documents(std::span<const GroupKey> keys) {
    std::vector<std::uint32_t> groups;
    groups.reserve(keys.size());
    for (const GroupKey key : keys) {
      const auto [at, is_new] = numbers_.try_emplace(key, static_cast<std::uint32_t>(keys_.size()));
      if (is_new) keys_.push_back(key);
      groups.push_back(at->second);
    }
    return groups;
  }

  // Find the position behind the separator of each document; return their number.
  std::size_t ends_of_documents(const ShardView& shard) {
    const std::uint64_t separator = ~std::uint64_t{0} << (64 - 8 * shard.width);
    for (Position position = 0; position < shard.position_count; ++position)
      if ((load_big(shard.suffix(position)) & separator) == separator)
        ends_.push_back(position + 1);
    return ends_.size();
  }

  // Set the minima of blocks of `previous_`, of blocks of these, and so on.
  void set_minima() {
    for (std::span<const std::uint32_t> below = previous_; below.size() > kBlock;
         below = minima_.back()) {
      std::vector<std::uint32_t> level;
      for (std::size_t at = 0; at < below.size(); at += kBlock) {
        const auto block = below.subspan(at, std::min(kBlock, below.size() - at));
        level.push_back(*std::min_element(block.begin(), block.end()));
      }
      minima_.push_back(std::move(level));
    }
  }

  // The first rank from `at` on, below `end`, whose group has no rank between `begin` and it.
  Rank first_met(Rank at, Rank end, Rank begin) const {
    while (at < end) {
      const Rank behind = at % kBlock == 0 ? behind_blocks(at, begin) : at;
      if (behind == at) {
        if (previous_[at] <= begin) return at;
        ++at;
      } else {
        at = behind;
      }
    }
    return end;
  }

  // The rank behind the largest block that begins at `at` and has no such rank; `at`: there is
  // none.
  Rank behind_blocks(Rank at, Rank begin) const {
    Rank behind = at, size = kBlock;
    for (const std::vector<std::uint32_t>& level : minima_) {
      if (at % size != 0 || level[at / size] <= begin) break;
      behind = at + size;
      size *= kBlock;
    }
    return behind;
  }

  std::vector<GroupKey> keys_;                           // of each group
  std::unordered_map<GroupKey, std::uint32_t> numbers_;  // of groups
  std::vector<Position> ends_;                           // of each document, behind its separator
  std::vector<std::uint32_t> groups_;                    // of each document
  std::vector<std::uint32_t> firsts_;                    // of each group, in `ranks_`; and the end
  std::vector<std::uint32_t> ranks_;                     // group by group, ascending
  std::vector<std::uint32_t> previous_;  // 1 + the rank before of the same group; 0: none
  std::vector<std::vector<std::uint32_t>> minima_;  // of blocks, then of blocks of these, ...
};

}  // namespace rest_store
