// Continuations of a match: its most frequent next tokens, counted, or estimated from a sample.
#pragma once

#include <array>

#include "search/sharing.hpp"

namespace rest_store {

constexpr std::size_t kContinuations = 16;  // the most next tokens of one match

// A hash of token ids, continued from `hash`.
inline std::uint64_t hash_of(std::span<const Token> tokens, std::uint64_t hash = 0) {
  for (const Token token : tokens) {
    hash = (hash ^ token) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

constexpr std::uint32_t kShort = 4;  // tokens of the longest suffix that is known by its tokens
constexpr Token kNoToken = ~Token{0};

// The tokens of a short suffix, the last one first, filled up with kNoToken.
using ShortSuffix = std::array<Token, kShort>;

// `tokens`: at most kShort, oldest first.
inline ShortSuffix short_suffix(std::span<const Token> tokens) {
  ShortSuffix out;
  out.fill(kNoToken);
  std::copy(tokens.rbegin(), tokens.rend(), out.begin());
  return out;
}

struct Continuation {
  Token token = 0;
  float share = 0;  // of the match's occurrences; estimated if not all of them were read
};

// The least stride at which at most `samples` of `count` occurrences are read.
inline std::uint64_t stride_of(std::uint64_t count, std::size_t samples) {
  return count <= samples ? 1 : (count + samples - 1) / samples;
}

// The next tokens of a match, the most frequent first.
struct Continuations {
  std::uint32_t size = 0;
  std::array<Continuation, kContinuations> top{};

  const Continuation* begin() const { return top.data(); }
  const Continuation* end() const { return top.data() + size; }
};

// How often tokens were read.
class TokenCounts {
 public:
  void clear() { sums_.clear(); }

  // Count a token. It is fast if the tokens of each shard come in ascending order.
  void add(Token token) {
    if (last_ < sums_.size() && sums_[last_].token == token) {
      ++sums_[last_].count;
      return;
    }
    const auto is_same = [&](const Sum& sum) { return sum.token == token; };
    last_ =
        static_cast<std::size_t>(std::find_if(sums_.begin(), sums_.end(), is_same) - sums_.begin());
    if (last_ == sums_.size()) sums_.push_back({token, 0});
    ++sums_[last_].count;
  }

  // Set `out` to the most frequent tokens, of equal counts the lesser token first, with their
  // shares of `total`. Then the counts can only be cleared.
  void most_frequent(double total, Continuations& out) {
    const std::size_t size = std::min(sums_.size(), kContinuations);
    order(size);
    out.size = static_cast<std::uint32_t>(size);
    for (std::size_t i = 0; i < size; ++i)
      out.top[i] = {sums_[i].token, static_cast<float>(sums_[i].count / total)};
  }

  // Set `out` to all tokens, in the same order.
  void all(std::vector<Token>& out) {
    order(sums_.size());
    out.clear();
    for (const Sum& sum : sums_) out.push_back(sum.token);
  }

 private:
  struct Sum {
    Token token;
    std::uint32_t count;
  };

  // Put the `size` most frequent tokens first, of equal counts the lesser token.
  void order(std::size_t size) {
    std::partial_sort(sums_.begin(), sums_.begin() + static_cast<std::ptrdiff_t>(size), sums_.end(),
                      [](const Sum& a, const Sum& b) {
                        return a.count != b.count ? a.count > b.count : a.token < b.token;
                      });
  }

  std::vector<Sum> sums_;
  std::size_t last_ = 0;  // the sum of the token that was read last
};

// A request for the continuations of one match.
struct ContinuationQuery {
  const std::vector<ShardView>* shards;
  std::uint32_t vocabulary;             // tokens are below it, separators are not
  std::span<const Interval> intervals;  // the occurrences of the match, one for each shard
  std::uint32_t length;                 // of the match, in tokens
  std::size_t samples;                  // the most occurrences that are read
  Continuations* out;                   // is overwritten
  const Sharing* sharing = nullptr;     // limits the reader; null: it may learn of everything
  bool is_shared = true;                // whether it may learn of all occurrences of the match
};

// Reads the next tokens of matches: all of them if they are few, else every n-th of the sorted
// suffixes. That misses no token with n or more occurrences in one shard. The reads of all queries
// of one call overlap (search/search.hpp). Keeps its memory between calls. Not thread-safe.
//
// Where a reader may not learn of everything, a token is left out unless enough groups wrote it
// after the match, or the reader did, and its share counts no occurrence that the reader may not
// learn of.
class ContinuationReader {
 public:
  // Answer all queries. `meanwhile()` is called once, while the first reads are on their way from
  // memory.
  template <class Meanwhile>
  void read(std::span<const ContinuationQuery> queries, Meanwhile&& meanwhile) {
    probes_.clear();
    ends_.clear();
    for (const ContinuationQuery& query : queries) {
      plan(query);
      ends_.push_back(probes_.size());
    }
    meanwhile();
    for (std::size_t i = 0; i < queries.size(); ++i) read_positions(queries[i], probes_of(i));
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const std::span<Probe> probes = probes_of(i);
      count_tokens(queries[i], probes);
      if (queries[i].sharing == nullptr || !queries[i].is_shared)
        counts_.most_frequent(static_cast<double>(probes.size()), *queries[i].out);
      else keep_visible(queries[i], probes);
    }
  }

 private:
  // An occurrence whose next token is read.
  struct Probe {
    const ShardView* shard;
    Rank rank;
    Position at;  // of the next token
    Token token;  // the next token
  };

  // The probes of the i-th query.
  std::span<Probe> probes_of(std::size_t i) {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::span(probes_).subspan(begin, ends_[i] - begin);
  }

  // Read the positions of the next tokens, and prefetch the tokens.
  static void read_positions(const ContinuationQuery& query, std::span<Probe> probes) {
    for (Probe& probe : probes) {
      probe.at = probe.shard->position(probe.rank) + query.length;
      prefetch(probe.shard->suffix(probe.at));
    }
  }

  // Read the next tokens, and count them.
  void count_tokens(const ContinuationQuery& query, std::span<Probe> probes) {
    counts_.clear();
    for (Probe& probe : probes) {
      const std::uint8_t* suffix = probe.shard->suffix(probe.at);
      probe.token = 0;
      for (std::uint32_t byte = 0; byte < probe.shard->width; ++byte)
        probe.token = probe.token << 8 | suffix[byte];
      if (probe.token < query.vocabulary) counts_.add(probe.token);
    }
  }

  // A token that follows a match, and how often, as far as the reader may learn.
  struct Counted {
    Token token;
    std::uint64_t count;
  };

  // Set the continuations of a match to those of which the reader may learn, among the tokens of
  // `probes`. The most frequent of these are checked first, until there are enough.
  void keep_visible(const ContinuationQuery& query, std::span<const Probe> probes) {
    std::uint64_t total = 0;
    for (const Interval& interval : query.intervals) total += interval.width();
    counts_.all(tokens_);
    visible_.clear();
    for (std::size_t from = 0; from < tokens_.size() && visible_.size() < kContinuations;
         from += kContinuations) {
      const auto checked = std::span(tokens_).subspan(
          from, std::min<std::size_t>(kContinuations, tokens_.size() - from));
      if (probes.size() == total) take_intervals(query, probes, checked);
      else find_intervals(query, checked);
      for (std::size_t i = 0; i < checked.size(); ++i) {
        const auto intervals =
            std::span(intervals_).subspan(i * query.intervals.size(), query.intervals.size());
        if (const auto visible = query.sharing->visible(*query.shards, intervals);
            visible.count > 0)
          visible_.push_back({checked[i], visible.count});
      }
    }
    const std::size_t size = std::min(visible_.size(), kContinuations);
    std::sort(visible_.begin(), visible_.end(), [](const Counted& a, const Counted& b) {
      return a.count != b.count ? a.count > b.count : a.token < b.token;
    });
    query.out->size = static_cast<std::uint32_t>(size);
    for (std::size_t i = 0; i < size; ++i) {
      const auto share = static_cast<double>(visible_[i].count) / static_cast<double>(total);
      query.out->top[i] = {visible_[i].token, static_cast<float>(share)};
    }
  }

  // Set `intervals_` to the occurrences of the match that each of `tokens` follows, for each token
  // one interval of each shard. `probes` are all occurrences of the match.
  void take_intervals(const ContinuationQuery& query, std::span<const Probe> probes,
                      std::span<const Token> tokens) {
    intervals_.assign(tokens.size() * query.intervals.size(), {});
    for (const Probe& probe : probes) {
      const auto token = std::find(tokens.begin(), tokens.end(), probe.token);
      if (token == tokens.end()) continue;
      const auto shard = static_cast<std::size_t>(probe.shard - query.shards->data());
      const auto number = static_cast<std::size_t>(token - tokens.begin());
      Interval& interval = intervals_[number * query.intervals.size() + shard];
      if (interval.width() == 0) interval = {probe.rank, probe.rank};
      interval.end = probe.rank + 1;
    }
  }

  // The same by binary searches.
  void find_intervals(const ContinuationQuery& query, std::span<const Token> tokens) {
    const std::size_t shards = query.intervals.size();
    patterns_.resize(tokens.size());
    boundaries_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::uint32_t width = query.shards->front().width;
      patterns_[i] = __builtin_bswap64(std::uint64_t{tokens[i]} << (64 - 8 * width));
      for (std::size_t shard = 0; shard < shards; ++shard)
        for (const bool after : {false, true})
          boundaries_.push_back(
              {&(*query.shards)[shard], reinterpret_cast<const std::uint8_t*>(&patterns_[i]), width,
               query.length, after, query.intervals[shard].begin, query.intervals[shard].end, 0});
    }
    find_boundaries(std::span(boundaries_));
    intervals_.resize(tokens.size() * shards);
    for (std::size_t i = 0; i < intervals_.size(); ++i) {
      const Rank begin = boundaries_[2 * i].low;
      intervals_[i] = {begin, std::max(begin, boundaries_[2 * i + 1].low)};
    }
  }

  // Append the probes of a query, and prefetch their entries of the suffix array.
  void plan(const ContinuationQuery& query) {
    const std::vector<ShardView>& shards = *query.shards;
    if (query.sharing != nullptr && !query.is_shared) return plan_own(query);
    std::uint64_t count = 0;
    for (const Interval& interval : query.intervals) count += interval.width();
    if (count == 0) return;
    const std::uint64_t stride = stride_of(count, query.samples);
    // Carried from shard to shard, so that the number of probes does not depend on that of shards.
    std::uint64_t skip = stride / 2;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const Interval& interval = query.intervals[i];
      Rank rank = interval.begin + skip;
      for (; rank < interval.end; rank += stride) {
        probes_.push_back({&shards[i], rank, 0, 0});
        prefetch(shards[i].entry_address(rank));
      }
      skip = rank - interval.end;
    }
  }

  // The same for the reader's own occurrences.
  void plan_own(const ContinuationQuery& query) {
    const std::vector<ShardView>& shards = *query.shards;
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < shards.size(); ++i)
      count += query.sharing->own_ranks(i, query.intervals[i]).size();
    const std::uint64_t stride = stride_of(count, query.samples);
    std::uint64_t skip = stride / 2;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::span<const std::uint32_t> own = query.sharing->own_ranks(i, query.intervals[i]);
      std::uint64_t at = skip;
      for (; at < own.size(); at += stride) {
        probes_.push_back({&shards[i], own[at], 0, 0});
        prefetch(shards[i].entry_address(own[at]));
      }
      skip = at - own.size();
    }
  }

  std::vector<Probe> probes_;
  std::vector<std::size_t> ends_;  // the end of each query's probes
  TokenCounts counts_;
  // Of a match that is shared: the tokens that follow it, those of which the reader may learn, and
  // the intervals of those that are being checked.
  std::vector<Token> tokens_;
  std::vector<Counted> visible_;
  std::vector<Interval> intervals_;
  std::vector<std::uint64_t> patterns_;
  std::vector<Boundary> boundaries_;
};

}  // namespace rest_store
