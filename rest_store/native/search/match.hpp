// The longest suffix of a context that occurs in a set of shards, and where (REST, Algorithm 1).
#pragma once

#include <array>
#include <vector>

#include "search/key_tree.hpp"
#include "search/search.hpp"

namespace rest_store {

// The last tokens of a context as a tokens file stores them, with eight readable bytes behind.
struct Suffix {
  std::array<std::uint8_t, kMaxSuffix * kMaxWidth + 8> bytes;
  std::uint32_t length = 0;  // tokens
  std::uint32_t width = 0;

  Suffix(const Token* tokens, std::size_t count, std::uint32_t token_width)
      : length(static_cast<std::uint32_t>(count)), width(token_width) {
    std::uint8_t* to = bytes.data();
    if (width == 2)
      for (std::size_t i = 0; i < count; ++i) to = put(to, tokens[i]);
    else
      for (std::size_t i = 0; i < count; ++i) {
        *to++ = static_cast<std::uint8_t>(tokens[i] >> 16);
        to = put(to, tokens[i]);
      }
    std::memset(to, 0, 8);
  }

  const std::uint8_t* last(std::uint32_t tokens) const { return bytes.data() + width * (length - tokens); }

 private:
  static std::uint8_t* put(std::uint8_t* to, Token token) {
    to[0] = static_cast<std::uint8_t>(token >> 8);
    to[1] = static_cast<std::uint8_t>(token);
    return to + 2;
  }
};

// The suffix at this position begins `skip` tokens before a continuation of a match.
struct Occurrence {
  std::uint32_t shard;
  Position position;
};

struct Match {
  std::uint32_t length = 0;             // tokens
  std::uint64_t count = 0;              // occurrences in all shards
  std::uint32_t skip = 0;               // tokens at the start of each occurrence's suffix that the match covers
  std::vector<Interval> intervals;      // of suffixes that start with the last `skip` tokens, one for each shard
  std::vector<Occurrence> occurrences;  // all, by shard, then by rank; none if they are many and skip == length
};

// Finds the longest matches of one or many contexts; their searches share rounds. Keeps its memory between calls.
//
// Occurrence is monotone in suffix length, in all shards and in each. A first round tries the short lengths, which the
// keys alone mostly decide; each further round cuts the gap between the longest length known to occur and the shortest
// known not to, in the shards in which no shorter suffix is known not to occur. Once a length occurs a few times only,
// the tokens before these occurrences tell the rest.
class Matcher {
 public:
  enum class Find { kOccurrences, kIntervals };  // what is needed: with intervals, skip is always the length

  // `known(place, length)` says of a match with many occurrences that its length, which the match then holds alone, is
  // all that is wanted.
  template <class Known>
  const std::vector<Match>& longest(const std::vector<ShardView>& shards, KeyTree& key_tree,
                                    std::span<const Suffix> suffixes, Find find, Known&& known) {
    states_.clear();
    for (const Suffix& suffix : suffixes) states_.push_back({&suffix, suffix.length + 1});
    matches_.resize(suffixes.size());
    absent_.assign(suffixes.size() * shards.size(), kMaxSuffix + 1);
    searches_.clear();
    for (;;) {
      const std::size_t first = searches_.size();
      plan_round(shards);
      if (walks_.empty()) break;
      key_tree.descend(walks_);
      const auto round = std::span(searches_).subspan(first);
      for (Search& search : round) search.keys_within(key_tree.places(walks_[search.group], place_of(search, shards)));
      locate(round, walks_.size(), decided_);
      for (const std::size_t i : open_) learn(states_[i], shards, absent_.data() + i * shards.size());
      if (find == Find::kIntervals) continue;
      bound(shards,
            [this](std::size_t i) { return !states_[i].closed() && states_[i].present > 0 && seems_rare(states_[i]); });
      extend(shards);
    }
    bound(shards, [&](std::size_t i) {
      const State& state = states_[i];
      if (state.present == 0 || seems_rare(state) || !known(i, state.present)) return true;
      matches_[i].length = state.present;
      return false;
    });
    return matches_;
  }

 private:
  static constexpr std::uint32_t kProbes = 4;  // lengths tried at once, at most

  struct Range {
    std::size_t begin = 0, end = 0;  // of searches
  };

  struct State {
    const Suffix* suffix;
    std::uint32_t absent;       // the shortest length known not to occur
    std::uint32_t present = 0;  // the longest known to occur
    std::uint32_t bounded = 0;  // that of which the match holds the intervals
    std::size_t first = 0;      // of this round's lengths
    std::uint32_t count = 0;
    std::array<std::uint32_t, kProbes> lengths{};
    std::array<Range, kProbes> tried{};
    Range best{};  // the searches for the longest length known to occur

    bool closed() const { return present + 1 == absent; }
  };

  // One of few occurrences, and how many more tokens of the context stand before it.
  struct Seen {
    std::size_t context;
    Rank rank;
    Occurrence occurrence;
    std::uint32_t more;
  };

  static std::size_t place_of(const Search& search, const std::vector<ShardView>& shards) {
    return static_cast<std::size_t>(search.shard - shards.data());
  }

  // Plan the next round: the searches of all contexts whose match is not yet known.
  void plan_round(const std::vector<ShardView>& shards) {
    walks_.clear();
    open_.clear();
    for (std::size_t i = 0; i < states_.size(); ++i)
      if (!states_[i].closed()) open_.push_back(i);
    if (open_.empty()) return;
    const auto probes = std::clamp<std::size_t>(in_flight() / (shards.size() * open_.size()), 1, kProbes);
    for (const std::size_t i : open_) plan(states_[i], shards, absent_.data() + i * shards.size(), probes);
  }

  // Append the next round's searches: for each length to try, one for each shard where it may occur. Most matches are
  // short: without a failure yet, lengths grow by half of what is known to occur; after one they cut the gap evenly.
  void plan(State& state, const std::vector<ShardView>& shards, const std::uint32_t* absent, std::size_t probes) {
    const std::uint32_t gap = state.absent - state.present - 1;
    const bool growing = state.absent > state.suffix->length;
    state.first = walks_.size();
    state.count = std::min(gap, static_cast<std::uint32_t>(probes));
    std::uint32_t length = state.present;
    for (std::uint32_t i = 0; i < state.count; ++i) {
      if (!growing) length = state.present + ((i + 1) * (gap + 1) + state.count) / (state.count + 1);
      else if (state.present == 0 && probes == 1) length = std::min(3U, gap);
      else length = std::min(length + std::max(1U, state.present / 2), state.absent - (state.count - i));
      state.lengths[i] = length;
      state.tried[i].begin = searches_.size();
      const Search pattern(shards[0], state.suffix->last(length), length * state.suffix->width, walks_.size());
      for (std::size_t s = 0; s < shards.size(); ++s)
        if (length < absent[s]) {
          searches_.push_back(pattern);
          searches_.back().shard = &shards[s];
        }
      state.tried[i].end = searches_.size();
      walks_.push_back({pattern.least});
    }
  }

  // Read the results of the searches that plan() appended.
  void learn(State& state, const std::vector<ShardView>& shards, std::uint32_t* absent) {
    for (std::uint32_t i = state.count; i-- > 0;) {
      for (std::size_t at = state.tried[i].begin; at < state.tried[i].end; ++at)
        if (searches_[at].failed()) absent[place_of(searches_[at], shards)] = state.lengths[i];
      if (decided_[state.first + i]) {
        state.present = state.lengths[i];
        state.best = state.tried[i];
        return;
      }
      state.absent = state.lengths[i];
    }
  }

  // Searches that should be under way in a round, about. A single context's are all there are, and more of them take
  // longer.
  std::size_t in_flight() const { return states_.size() == 1 ? 8 : 24; }

  // So many occurrences are looked at one by one: of a single context, all at once while nothing else is under way.
  std::uint64_t few() const { return states_.size() == 1 ? 48 : 16; }

  // Whether the longest length known to occur does so a few times only, judging by the keys or by how many ranks were
  // left when its search came upon an occurrence.
  bool seems_rare(const State& state) const {
    if (state.present * state.suffix->width > 8) {
      std::uint64_t left = 0;
      for (std::size_t at = state.best.begin; at < state.best.end; ++at) left += searches_[at].left();
      return left <= 2 * kKeyStride;
    }
    std::size_t keys = 0;
    for (std::size_t at = state.best.begin; at < state.best.end; ++at) {
      const Search& search = searches_[at];
      for (std::uint64_t key = search.base; key < search.shard->key_count && search.shard->keys[key] <= search.greatest;
           ++key)
        if (++keys > 1) return false;
    }
    return true;
  }

  // Find the intervals of the longest lengths known to occur, of the contexts that are `meant`: whether they occur in
  // the shards that were left half-way, then where.
  template <class Meant>
  void bound(const std::vector<ShardView>& shards, Meant&& meant) {
    wanted_.clear();
    bounding_.clear();
    for (std::size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      if (state.bounded == state.present && state.present > 0) continue;
      if (!meant(i)) continue;
      bounding_.push_back(i);
      for (std::size_t at = state.best.begin; at < state.best.end; ++at) wanted_.push_back(searches_[at]);
    }
    finish(wanted_);
    boundaries_.clear();
    for (const Search& search : wanted_)
      if (search.found) {
        boundaries_.resize(boundaries_.size() + 2);
        interval_boundaries(search, boundaries_.data() + boundaries_.size() - 2);
      }
    find_boundaries(boundaries_);
    auto boundary = boundaries_.begin();
    auto search = wanted_.begin();
    for (const std::size_t i : bounding_) {
      State& state = states_[i];
      Match& match = matches_[i];
      state.bounded = match.length = match.skip = state.present;
      match.count = 0;
      match.intervals.assign(shards.size(), {});
      match.occurrences.clear();
      for (std::size_t left = state.best.end - state.best.begin; left-- > 0; ++search)
        if (search->found) {
          const Interval interval{boundary[0].low, std::max(boundary[0].low, boundary[1].low)};
          match.intervals[place_of(*search, shards)] = interval;
          match.count += interval.width();
          boundary += 2;
        }
    }
  }

  // Of the contexts that bound() took and found to occur a few times only, compare the tokens before each occurrence:
  // they end the search.
  void extend(const std::vector<ShardView>& shards) {
    seen_.clear();
    for (const std::size_t i : bounding_) {
      const Match& match = matches_[i];
      if (match.count > few() || match.count == 0) continue;
      for (std::uint32_t s = 0; s < shards.size(); ++s)
        for (Rank rank = match.intervals[s].begin; rank < match.intervals[s].end; ++rank) {
          prefetch(shards[s].entry_address(rank));
          seen_.push_back({i, rank, {s, 0}, 0});
        }
    }
    for (Seen& one : seen_) {
      const ShardView& shard = shards[one.occurrence.shard];
      const Position position = one.occurrence.position = shard.position(one.rank);
      const std::uint8_t* text = shard.suffix(position);
      prefetch(text - (position > 0 ? 1 : 0));
      prefetch(text + matches_[one.context].skip * shard.width);
    }
    for (auto first = seen_.begin(); first != seen_.end();) {
      const std::size_t context = first->context;
      State& state = states_[context];
      Match& match = matches_[context];
      std::uint32_t most = 0;
      auto last = first;
      for (; last != seen_.end() && last->context == context; ++last) {
        last->more =
            tokens_before(shards[last->occurrence.shard], last->occurrence.position, *state.suffix, match.skip);
        most = std::max(most, last->more);
      }
      state.absent = state.present + 1;
      for (auto one = first; one != last; ++one)
        if (one->more == most) match.occurrences.push_back(one->occurrence);
      match.length = match.skip + most;
      match.count = match.occurrences.size();
      first = last;
    }
  }

  // How many tokens before `position` are those before the last `length` of `suffix`.
  static std::uint32_t tokens_before(const ShardView& shard, Position position, const Suffix& suffix,
                                     std::uint32_t length) {
    const auto limit = static_cast<std::uint32_t>(std::min<Position>(position, suffix.length - length));
    const std::uint8_t *text = shard.suffix(position), *wanted = suffix.last(length);
    std::uint32_t more = 0;
    for (; more < limit; ++more) {
      text -= shard.width;
      wanted -= shard.width;
      if (text[0] != wanted[0] || text[1] != wanted[1] || (shard.width == 3 && text[2] != wanted[2])) break;
    }
    return more;
  }

  std::vector<State> states_;
  std::vector<Search> searches_, wanted_;
  std::vector<std::size_t> open_, bounding_;
  std::vector<KeyTree::Walk> walks_;
  std::vector<std::uint32_t> absent_;  // of each context and shard: a length known not to occur there
  std::vector<std::uint8_t> decided_;
  std::vector<Boundary> boundaries_;
  std::vector<Seen> seen_;
  std::vector<Match> matches_;
};

}  // namespace rest_store
