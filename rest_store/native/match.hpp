// The longest suffix of a context that occurs in a set of shards, and where (REST, Algorithm 1).
#pragma once

#include <array>
#include <vector>

#include "search.hpp"

namespace rest_store {

// The last tokens of a context as a tokens file stores them, with eight readable bytes behind.
struct Suffix {
  std::array<std::uint8_t, kMaxSuffix * kMaxWidth + 8> bytes{};
  std::uint32_t length = 0;  // tokens
  std::uint32_t width = 0;

  Suffix(const Token* tokens, std::size_t count, std::uint32_t token_width)
      : length(static_cast<std::uint32_t>(count)), width(token_width) {
    std::uint8_t* to = bytes.data();
    for (std::size_t i = 0; i < count; ++i)
      for (std::uint32_t byte = width; byte-- > 0;) *to++ = static_cast<std::uint8_t>(tokens[i] >> (8 * byte));
  }

  const std::uint8_t* last(std::uint32_t tokens) const { return bytes.data() + width * (length - tokens); }
};

struct Match {
  std::uint32_t length = 0;         // tokens
  std::uint64_t count = 0;          // occurrences in all shards
  std::vector<Interval> intervals;  // one for each shard, empty where the match does not occur
};

// Finds the longest matches of one or many contexts; their searches share rounds. Keeps its memory between calls.
//
// Occurrence is monotone in suffix length. A first round tries the short lengths, which the keys alone mostly decide;
// each further round cuts the gap between the longest length known to occur and the shortest known not to.
class Matcher {
 public:
  const std::vector<Match>& longest(const std::vector<ShardView>& shards, std::span<const Suffix> suffixes) {
    states_.clear();
    for (const Suffix& suffix : suffixes) states_.push_back({&suffix, 0, suffix.length + 1, 0, 0, {}});
    best_.resize(suffixes.size() * shards.size());
    for (bool open = true; open;) {
      searches_.clear();
      for (State& state : states_) plan(state, shards);
      open = !searches_.empty();
      locate(searches_, shards.size(), decided_);
      for (std::size_t i = 0; i < states_.size(); ++i)
        learn(states_[i], shards.size(), best_.data() + i * shards.size());
    }
    bound(shards.size());
    return matches_;
  }

 private:
  static constexpr std::uint32_t kProbes = 4;  // lengths tried at once, at most
  static constexpr std::size_t kInFlight = 8;  // searches that should be under way, about

  struct State {
    const Suffix* suffix;
    std::uint32_t present, absent;  // the longest length known to occur, the shortest known not to
    std::size_t first;              // of this round's searches
    std::uint32_t count;            // of this round's lengths
    std::array<std::uint32_t, kProbes> lengths;
  };

  // Append the next round's searches: for each length to try, one for each shard. Most matches are short: without a
  // failure yet, lengths grow by half of what is known to occur; after one they cut the gap evenly.
  void plan(State& state, const std::vector<ShardView>& shards) {
    const std::uint32_t gap = state.absent - state.present - 1;
    const auto probes =
        static_cast<std::uint32_t>(std::clamp<std::size_t>(kInFlight / (shards.size() * states_.size()), 1, kProbes));
    const bool growing = state.absent > state.suffix->length;
    state.first = searches_.size();
    state.count = std::min(gap, probes);
    std::uint32_t length = state.present;
    for (std::uint32_t i = 0; i < state.count; ++i) {
      if (!growing) length = state.present + ((i + 1) * (gap + 1) + state.count) / (state.count + 1);
      else if (state.present == 0 && probes == 1) length = std::min(3U, gap);
      else length = std::min(length + std::max(1U, state.present / 2), state.absent - (state.count - i));
      state.lengths[i] = length;
      for (const ShardView& shard : shards)
        searches_.emplace_back(shard, state.suffix->last(length), length * state.suffix->width);
    }
  }

  // Read the results of the searches that plan() appended.
  void learn(State& state, std::size_t shards, Search* best) {
    for (std::uint32_t i = state.count; i-- > 0;) {
      const std::size_t first = state.first + i * shards;
      if (decided_[first / shards]) {
        state.present = state.lengths[i];
        std::copy_n(searches_.begin() + static_cast<std::ptrdiff_t>(first), shards, best);
        return;
      }
      state.absent = state.lengths[i];
    }
  }

  // Find the intervals of the best matches.
  void bound(std::size_t shards) {
    boundaries_.clear();
    for (std::size_t i = 0; i < best_.size(); ++i)
      if (states_[i / shards].present > 0) {
        boundaries_.resize(boundaries_.size() + 2);
        interval_boundaries(best_[i], boundaries_.data() + boundaries_.size() - 2);
      }
    find_boundaries(boundaries_);
    matches_.resize(states_.size());
    auto boundary = boundaries_.begin();
    for (std::size_t i = 0; i < best_.size(); ++i) {
      const State& state = states_[i / shards];
      Match& match = matches_[i / shards];
      if (i % shards == 0) {
        match.length = state.present;
        match.count = 0;
        match.intervals.assign(shards, {});
      }
      if (state.present == 0) continue;
      match.intervals[i % shards] = {boundary[0].low, std::max(boundary[0].low, boundary[1].low)};
      match.count += match.intervals[i % shards].width();
      boundary += 2;
    }
  }

  std::vector<State> states_;
  std::vector<Search> searches_, best_;
  std::vector<std::uint8_t> decided_;
  std::vector<Boundary> boundaries_;
  std::vector<Match> matches_;
};

}  // namespace rest_store
