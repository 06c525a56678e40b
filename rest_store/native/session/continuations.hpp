// Continuations of an n-gram: the most frequent next tokens of a match, counted, or estimated from
// a sample.
#pragma once

#include <array>

#include "search/sharing.hpp"

namespace rest_store {

constexpr std::size_t kContinuations = 16;  // next tokens kept of one match

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

inline ShortSuffix short_suffix(std::span<const Token> tokens) {
  ShortSuffix out;
  out.fill(kNoToken);
  std::copy(tokens.rbegin(), tokens.rend(), out.begin());
  return out;
}

struct Continuation {
  Token token = 0;
  float share = 0;  // estimated, of the match's occurrences
};

// The stride at which at most `samples` of `count` occurrences are read.
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

  // Of each shard, the tokens come in ascending order.
  void add(Token token) {
    if (last_ < sums_.size() && sums_[last_].token == token)
      return static_cast<void>(++sums_[last_].count);
    const auto is_same = [&](const Sum& sum) { return sum.token == token; };
    last_ =
        static_cast<std::size_t>(std::find_if(sums_.begin(), sums_.end(), is_same) - sums_.begin());
    if (last_ == sums_.size()) sums_.push_back({token, 0});
    ++sums_[last_].count;
  }

  // The most frequent tokens, of equal counts the lesser token first, as shares of `total`.
  void most_frequent(double total, Continuations& out) {
    const std::size_t size = std::min(sums_.size(), kContinuations);
    order(size);
    out.size = static_cast<std::uint32_t>(size);
    for (std::size_t i = 0; i < size; ++i)
      out.top[i] = {sums_[i].token, static_cast<float>(sums_[i].count / total)};
  }

  // All tokens, the most frequent first.
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

// One match whose continuations are wanted: where its `length` tokens occur in each of `shards`,
// and how many occurrences are read at most.
struct ContinuationQuery {
  const std::vector<ShardView>* shards;
  std::uint32_t vocabulary;
  std::span<const Interval> intervals;
  std::uint32_t length;
  std::size_t samples;
  Continuations* out;
  const Sharing* sharing = nullptr;  // limits the reader; null: it may learn of everything
  bool is_shared = true;             // whether it may learn of all occurrences of the match
};

// Reads the next tokens of matches: all of them if they are few, else every n-th of the sorted
// suffixes, which misses no token with more than n occurrences. The queries of one call overlap
// their memory latencies. Keeps its memory between calls.
//
// Where a reader may not learn of everything, a token is left out unless enough groups wrote it
// after the match, or the reader did, and its share counts no occurrence that the reader may not
// learn of.
class ContinuationReader {
 public:
  // `meanwhile` is called while the first of what is read is on its way from memory.
  template <class Meanwhile>
  void read(std::span<const ContinuationQuery> queries, Meanwhile&& meanwhile) {
    probes_.clear();
    ends_.clear();
    for (const ContinuationQuery& query : queries) {
      plan(query);
      ends_.push_back(probes_.size());
    }
    meanwhile();
    std::size_t next = 0;
    for (std::size_t i = 0; i < queries.size(); ++i)
      for (; next < ends_[i]; ++next) {
        Probe& probe = probes_[next];
        probe.at = probe.shard->position(probe.rank) + queries[i].length;
        prefetch(probe.shard->suffix(probe.at));
      }
    next = 0;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const std::size_t count = ends_[i] - next;
      counts_.clear();
      for (; next < ends_[i]; ++next) {
        Probe& probe = probes_[next];
        const std::uint8_t* suffix = probe.shard->suffix(probe.at);
        probe.token = 0;
        for (std::uint32_t byte = 0; byte < probe.shard->width; ++byte)
          probe.token = probe.token << 8 | suffix[byte];
        if (probe.token < queries[i].vocabulary) counts_.add(probe.token);
      }
      if (queries[i].sharing == nullptr || !queries[i].is_shared)
        counts_.most_frequent(static_cast<double>(count), *queries[i].out);
      else keep_visible(queries[i], std::span(probes_).subspan(next - count, count));
    }
  }

 private:
  struct Probe {
    const ShardView* shard;
    Rank rank;
    Position at;
    Token token;
  };

  // A token that follows a match, and how often, as far as the reader may learn.
  struct Counted {
    Token token;
    std::uint64_t count;
  };

  // Set the continuations of a match of which the reader may learn, from all the tokens that
  // `probes` have shown. The most frequent of these are looked at first, until there are enough.
  void keep_visible(const ContinuationQuery& query, std::span<const Probe> probes) {
    std::uint64_t total = 0;
    for (const Interval& interval : query.intervals) total += interval.width();
    counts_.all(tokens_);
    visible_.clear();
    for (std::size_t from = 0; from < tokens_.size() && visible_.size() < kContinuations;
         from += kContinuations) {
      const auto some = std::span(tokens_).subspan(
          from, std::min<std::size_t>(kContinuations, tokens_.size() - from));
      if (probes.size() == total) take_intervals(query, probes, some);
      else find_intervals(query, some);
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto intervals =
            std::span(intervals_).subspan(i * query.intervals.size(), query.intervals.size());
        if (const auto visible = query.sharing->visible(*query.shards, intervals);
            visible.count > 0)
          visible_.push_back({some[i], visible.count});
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

  // Set `intervals_` to where each of `tokens` follows the match, from the probes of all of its
  // occurrences.
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

  // The same, by binary searches.
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

  // Append the ranks that are read.
  void plan(const ContinuationQuery& query) {
    const std::vector<ShardView>& shards = *query.shards;
    if (query.sharing != nullptr && !query.is_shared) return plan_own(query);
    std::uint64_t count = 0;
    for (const Interval& interval : query.intervals) count += interval.width();
    if (count == 0) return;
    const std::uint64_t stride = stride_of(count, query.samples);
    std::uint64_t skip =
        stride / 2;  // carried from shard to shard, so that shares do not depend on their number
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

  // The same of the reader's own occurrences.
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
  std::vector<std::size_t> ends_;  // of each query's probes
  TokenCounts counts_;
  // Of a match that is shared: tokens that follow it, those that the reader may learn of, and where
  // some of them are.
  std::vector<Token> tokens_;
  std::vector<Counted> visible_;
  std::vector<Interval> intervals_;
  std::vector<std::uint64_t> patterns_;
  std::vector<Boundary> boundaries_;
};

}  // namespace rest_store
