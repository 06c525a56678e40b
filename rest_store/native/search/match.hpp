// The longest suffix of a context that occurs in a set of shards, and where (REST, Algorithm 1).
#pragma once

#include <array>
#include <vector>

#include "search/key_tree.hpp"
#include "search/search.hpp"

namespace rest_store {

// The last tokens of a context in the byte order of a tokens file, followed by eight readable bytes.
struct Suffix {
  std::array<std::uint8_t, kMaxSuffix * kMaxWidth + 8> bytes;
  std::uint32_t length = 0;  // tokens
  std::uint32_t width = 0;   // bytes of one token

  Suffix(const Token* tokens, std::size_t count, std::uint32_t token_width)
      : length(static_cast<std::uint32_t>(count)), width(token_width) {
    std::uint8_t* to = bytes.data();
    for (std::size_t i = 0; i < count; ++i) {
      if (width == 3) *to++ = static_cast<std::uint8_t>(tokens[i] >> 16);
      *to++ = static_cast<std::uint8_t>(tokens[i] >> 8);
      *to++ = static_cast<std::uint8_t>(tokens[i]);
    }
    std::memset(to, 0, 8);
  }

  const std::uint8_t* last(std::uint32_t tokens) const { return bytes.data() + width * (length - tokens); }
};

struct Match {
  std::uint32_t length = 0;         // tokens
  std::uint64_t count = 0;          // occurrences in all shards
  std::vector<Interval> intervals;  // of the suffixes that start with the match, one for each shard
};

// Finds the longest match of a context. Keeps its memory between calls; not thread-safe.
//
// Occurrence is monotone in suffix length, in all shards together and in each. The first round tries the short lengths,
// which the keys alone mostly decide. Each further round narrows the gap between the longest length known to occur and
// the shortest known not to, in the shards where no shorter suffix is known not to occur.
class Matcher {
 public:
  // The result is valid until the next call.
  const Match& longest(const std::vector<ShardView>& shards, KeyTree& key_tree, const Suffix& suffix) {
    present_ = 0;
    absent_ = suffix.length + 1;
    absent_in_.assign(shards.size(), kMaxSuffix + 1);
    searches_.clear();
    best_ = {};
    while (present_ + 1 < absent_) {
      const std::size_t first = searches_.size();
      plan(shards, suffix);
      key_tree.descend(std::span(walks_.data(), probe_count_));
      const auto round = std::span(searches_).subspan(first);
      for (Search& search : round) search.keys_within(key_tree.places(walks_[search.group], place_of(search, shards)));
      locate(round, probe_count_, occurs_);
      learn(shards);
    }
    find_intervals(shards);
    return match_;
  }

 private:
  static constexpr std::size_t kProbes = 4;    // lengths tried in one round, at most
  static constexpr std::size_t kInFlight = 8;  // searches in one round, about: more of them take longer

  // A range of `searches_`.
  struct Range {
    std::size_t begin = 0, end = 0;
  };

  static std::size_t place_of(const Search& search, const std::vector<ShardView>& shards) {
    return static_cast<std::size_t>(search.shard - shards.data());
  }

  // Append the searches of the next round: for each length to try, one in each shard where it may occur. Most matches
  // are short: until a length fails, lengths grow by half of what is known to occur; after that they divide the gap
  // evenly.
  void plan(const std::vector<ShardView>& shards, const Suffix& suffix) {
    const std::uint32_t gap = absent_ - present_ - 1;
    const bool growing = absent_ > suffix.length;
    const std::size_t probes = std::clamp<std::size_t>(kInFlight / shards.size(), 1, kProbes);
    probe_count_ = std::min(gap, static_cast<std::uint32_t>(probes));
    std::uint32_t length = present_;
    for (std::uint32_t i = 0; i < probe_count_; ++i) {
      if (!growing) length = present_ + ((i + 1) * (gap + 1) + probe_count_) / (probe_count_ + 1);
      else if (present_ == 0 && probes == 1) length = std::min(3U, gap);
      else length = std::min(length + std::max(1U, present_ / 2), absent_ - (probe_count_ - i));
      lengths_[i] = length;
      ranges_[i].begin = searches_.size();
      const Search pattern(shards[0], suffix.last(length), length * suffix.width, i);
      for (std::size_t s = 0; s < shards.size(); ++s)
        if (length < absent_in_[s]) {
          searches_.push_back(pattern);
          searches_.back().shard = &shards[s];
        }
      ranges_[i].end = searches_.size();
      walks_[i] = {pattern.least};
    }
  }

  // Read the results of the searches that plan() appended.
  void learn(const std::vector<ShardView>& shards) {
    for (std::uint32_t i = probe_count_; i-- > 0;) {
      for (std::size_t at = ranges_[i].begin; at < ranges_[i].end; ++at)
        if (searches_[at].failed()) absent_in_[place_of(searches_[at], shards)] = lengths_[i];
      if (occurs_[i]) {
        present_ = lengths_[i];
        best_ = ranges_[i];
        return;
      }
      absent_ = lengths_[i];
    }
  }

  // Find the intervals of the longest length that occurs: first whether it occurs in the shards whose searches locate()
  // left half-way, then where.
  void find_intervals(const std::vector<ShardView>& shards) {
    match_.length = present_;
    match_.count = 0;
    match_.intervals.assign(shards.size(), {});
    const auto searches = std::span(searches_).subspan(best_.begin, best_.end - best_.begin);
    finish(searches);
    boundaries_.clear();
    for (const Search& search : searches)
      if (search.found) {
        boundaries_.resize(boundaries_.size() + 2);
        interval_boundaries(search, boundaries_.data() + boundaries_.size() - 2);
      }
    find_boundaries(std::span(boundaries_));
    const Boundary* boundary = boundaries_.data();
    for (const Search& search : searches)
      if (search.found) {
        const Interval interval{boundary[0].low, std::max(boundary[0].low, boundary[1].low)};
        match_.intervals[place_of(search, shards)] = interval;
        match_.count += interval.width();
        boundary += 2;
      }
  }

  std::uint32_t present_ = 0;             // the longest length known to occur
  std::uint32_t absent_ = 0;              // the shortest length known not to occur
  std::vector<std::uint32_t> absent_in_;  // the same of each shard
  std::uint32_t probe_count_ = 0;         // lengths tried in this round; of each:
  std::array<std::uint32_t, kProbes> lengths_{};
  std::array<Range, kProbes> ranges_{};
  std::array<KeyTree::Walk, kProbes> walks_{};
  std::vector<std::uint8_t> occurs_;
  Range best_;  // the searches for the longest length known to occur
  std::vector<Search> searches_;
  std::vector<Boundary> boundaries_;
  Match match_;
};

}  // namespace rest_store
