// The longest suffix of a context that occurs in a set of shards, and where (REST, Algorithm 1).
//
// The naive way: search for the suffix of the greatest length, then for that of one token less,
// until one occurs. Most matches are a few tokens long, so nearly all of these searches are for
// suffixes that do not occur.
//
// The rule: where a suffix occurs, every shorter one does. So the longest length is found like a
// number in a sorted list: a few lengths are tried at once, and each round narrows the gap between
// the longest length known to occur and the shortest known not to. Only the longest match gets its
// intervals.
#pragma once

#include <array>
#include <vector>

#include "search/search.hpp"

namespace rest_store {

// The last tokens of a context, or a sequence to be counted, in the byte order of a tokens file,
// followed by eight readable bytes.
struct Suffix {
  std::array<std::uint8_t, kMaxSequence * kMaxWidth + 8> bytes;
  std::uint32_t length = 0;  // tokens
  std::uint32_t width = 0;   // bytes of one token

  // `tokens`: at most kMaxSequence, oldest first. `token_width`: 2 or 3 bytes.
  Suffix(std::span<const Token> tokens, std::uint32_t token_width)
      : length(static_cast<std::uint32_t>(tokens.size())), width(token_width) {
    std::uint8_t* to = bytes.data();
    for (const Token token : tokens) {
      if (width == 3) *to++ = static_cast<std::uint8_t>(token >> 16);
      *to++ = static_cast<std::uint8_t>(token >> 8);
      *to++ = static_cast<std::uint8_t>(token);
    }
    std::memset(to, 0, 8);
  }

  // The bytes of the last `tokens` tokens.
  const std::uint8_t* last(std::uint32_t tokens) const {
    return bytes.data() + width * (length - tokens);
  }
};

struct Match {
  std::uint32_t length = 0;         // tokens
  std::uint64_t count = 0;          // occurrences in all shards
  std::vector<Interval> intervals;  // of the suffixes that start with the match, one for each shard
};

// A request for the longest match of a context.
struct MatchQuery {
  const std::vector<ShardView>* shards;
  const Suffix* suffix;
  Match* out;  // is overwritten
  // A length known to occur. If no longer one does, `out` gets neither count nor intervals.
  std::uint32_t present = 0;
};

// Finds the longest matches of contexts. The searches of one call take turns (search.hpp). Keeps
// its memory between calls. Not thread-safe.
class Matcher {
 public:
  // The longest match of one context, which may be of length 0; valid until the next call.
  Match& longest(const std::vector<ShardView>& shards, const Suffix& suffix) {
    const MatchQuery query{&shards, &suffix, &match_};
    longest(std::span(&query, 1));
    return match_;
  }

  // Set the longest match of each query.
  void longest(std::span<const MatchQuery> queries) {
    searches_.clear();
    if (contexts_.size() < queries.size()) contexts_.resize(queries.size());
    const auto contexts = std::span(contexts_).first(queries.size());
    for (std::size_t i = 0; i < queries.size(); ++i) contexts[i].begin(queries[i]);
    for (;;) {
      const std::size_t first = searches_.size();
      std::size_t groups = 0;
      for (LengthSearch& one : contexts) groups += one.plan(searches_, groups);
      if (groups == 0) break;
      locate(std::span(searches_).subspan(first), groups, occurs_);
      for (LengthSearch& one : contexts) one.learn(searches_, occurs_);
    }
    find_intervals(contexts);
  }

 private:
  static constexpr std::size_t kProbes = 4;  // most lengths of a context that a round tries
  // About so many searches of a context are in one round; more of them take longer.
  static constexpr std::size_t kInFlight = 8;

  // A range of searches.
  struct Range {
    std::size_t begin = 0, end = 0;
  };

  // The search for the longest length of one context that occurs.
  //
  // The first round tries short lengths, which the keys alone mostly decide. Longer ones are
  // searched only in the shards where no shorter suffix is known not to occur.
  struct LengthSearch {
    MatchQuery query;
    std::uint32_t present;                 // the longest length known to occur
    std::uint32_t absent;                  // the shortest length known not to occur
    std::vector<std::uint32_t> absent_in;  // the same of each shard
    Range best;                            // the searches for the longest length known to occur
    // The lengths that this round tries, the number of the first of their groups, and the searches
    // for each.
    std::uint32_t probe_count;
    std::size_t first_group;
    std::array<std::uint32_t, kProbes> lengths;
    std::array<Range, kProbes> ranges;

    void begin(const MatchQuery& of) {
      query = of;
      present = query.present;
      absent = query.suffix->length + 1;
      absent_in.assign(query.shards->size(), kMaxSuffix + 1);
      best = {};
    }

    std::size_t shard_of(const Search& search) const {
      return static_cast<std::size_t>(search.shard - query.shards->data());
    }

    // Append the searches of the next round: for each length to try, one in each shard where it may
    // occur. Most matches are short: until a length fails, lengths grow by half of the longest
    // known match; after that they divide the gap evenly. Returns the number of lengths; their
    // groups count from `group` on.
    std::size_t plan(std::vector<Search>& searches, std::size_t group) {
      const std::vector<ShardView>& shards = *query.shards;
      const std::uint32_t gap = absent - present - 1;
      const bool growing = absent > query.suffix->length;
      const std::size_t probes = std::clamp<std::size_t>(kInFlight / shards.size(), 1, kProbes);
      probe_count = std::min(gap, static_cast<std::uint32_t>(probes));
      first_group = group;
      std::uint32_t length = present;
      for (std::uint32_t i = 0; i < probe_count; ++i) {
        if (!growing) length = present + ((i + 1) * (gap + 1) + probe_count) / (probe_count + 1);
        else if (present == 0 && probes == 1) length = std::min(3U, gap);
        else length = std::min(length + std::max(1U, present / 2), absent - (probe_count - i));
        lengths[i] = length;
        ranges[i].begin = searches.size();
        for (std::size_t s = 0; s < shards.size(); ++s)
          if (length < absent_in[s])
            searches.emplace_back(shards[s], query.suffix->last(length),
                                  length * query.suffix->width, group + i);
        ranges[i].end = searches.size();
      }
      return probe_count;
    }

    // Read the results of the searches that plan() appended.
    void learn(std::span<const Search> searches, std::span<const std::uint8_t> occurs) {
      for (std::uint32_t i = probe_count; i-- > 0;) {
        for (std::size_t at = ranges[i].begin; at < ranges[i].end; ++at)
          if (searches[at].failed()) absent_in[shard_of(searches[at])] = lengths[i];
        if (occurs[first_group + i]) {
          present = lengths[i];
          best = ranges[i];
          return;
        }
        absent = lengths[i];
      }
    }
  };

  // Find the intervals of the longest lengths that occur: first whether they occur in the shards
  // whose searches locate() left half-way, then where.
  void find_intervals(std::span<const LengthSearch> contexts) {
    wanted_.clear();
    for (const LengthSearch& one : contexts)
      for (std::size_t at = one.best.begin; at < one.best.end; ++at)
        wanted_.push_back(searches_[at]);
    finish(wanted_);
    boundaries_.clear();
    for (const Search& search : wanted_)
      if (search.has_hit) {
        boundaries_.resize(boundaries_.size() + 2);
        interval_boundaries(search, boundaries_.data() + boundaries_.size() - 2);
      }
    find_boundaries(std::span(boundaries_));
    const Boundary* boundary = boundaries_.data();
    const Search* search = wanted_.data();
    for (const LengthSearch& one : contexts) {
      Match& match = *one.query.out;
      match.length = one.present;
      match.count = 0;
      match.intervals.assign(one.query.shards->size(), {});
      for (std::size_t at = one.best.begin; at < one.best.end; ++at, ++search) {
        if (!search->has_hit) continue;
        const Interval interval{boundary[0].low, std::max(boundary[0].low, boundary[1].low)};
        match.intervals[one.shard_of(*search)] = interval;
        match.count += interval.width();
        boundary += 2;
      }
    }
  }

  std::vector<LengthSearch> contexts_;
  std::vector<std::uint8_t> occurs_;
  std::vector<Search> searches_, wanted_;
  std::vector<Boundary> boundaries_;
  Match match_;
};

}  // namespace rest_store
