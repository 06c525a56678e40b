// Continuations of an n-gram: the most frequent next tokens of a match, counted, or estimated from
// a sample.
#pragma once

#include <array>

#include "search/match.hpp"

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
    std::partial_sort(sums_.begin(), sums_.begin() + static_cast<std::ptrdiff_t>(size), sums_.end(),
                      [](const Sum& a, const Sum& b) {
                        return a.count != b.count ? a.count > b.count : a.token < b.token;
                      });
    out.size = static_cast<std::uint32_t>(size);
    for (std::size_t i = 0; i < size; ++i)
      out.top[i] = {sums_[i].token, static_cast<float>(sums_[i].count / total)};
  }

 private:
  struct Sum {
    Token token;
    std::uint32_t count;
  };

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
};

// Reads the next tokens of matches: all of them if they are few, else every n-th of the sorted
// suffixes, which misses no token with more than n occurrences. The queries of one call overlap
// their memory latencies. Keeps its memory between calls.
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
        probe.at = probe.shard->position(probe.at) + queries[i].length;
        prefetch(probe.shard->suffix(probe.at));
      }
    next = 0;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const std::size_t count = ends_[i] - next;
      counts_.clear();
      for (; next < ends_[i]; ++next) {
        const Probe& probe = probes_[next];
        const std::uint8_t* suffix = probe.shard->suffix(probe.at);
        Token token = 0;
        for (std::uint32_t byte = 0; byte < probe.shard->width; ++byte)
          token = token << 8 | suffix[byte];
        if (token < queries[i].vocabulary) counts_.add(token);
      }
      counts_.most_frequent(static_cast<double>(count), *queries[i].out);
    }
  }

 private:
  struct Probe {
    const ShardView* shard;
    std::uint64_t at;  // a rank, then a position
  };

  // Append the ranks that are read.
  void plan(const ContinuationQuery& query) {
    const std::vector<ShardView>& shards = *query.shards;
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
        probes_.push_back({&shards[i], rank});
        prefetch(shards[i].entry_address(rank));
      }
      skip = rank - interval.end;
    }
  }

  std::vector<Probe> probes_;
  std::vector<std::size_t> ends_;  // of each query's probes
  TokenCounts counts_;
};

}  // namespace rest_store
