// Continuations of an n-gram: the most frequent next tokens of a match, counted, or estimated from a sample.
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

struct Continuation {
  Token token = 0;
  float share = 0;  // estimated, of the match's occurrences
};

// The next tokens of a match, heaviest first.
struct Continuations {
  std::uint32_t size = 0;
  std::uint32_t probes = 0;  // occurrences that were read; shares are multiples of 1 / probes
  std::array<Continuation, kContinuations> top{};

  const Continuation* begin() const { return top.data(); }
  const Continuation* end() const { return top.data() + size; }
};

// Sums of weights by token, for tokens that come mostly in runs.
class TokenWeights {
 public:
  void clear() { sums_.clear(); }

  void add(Token token, double weight) {
    if (!sums_.empty() && sums_.back().first == token) {
      sums_.back().second += weight;
      return;
    }
    for (auto& [other, sum] : sums_)
      if (other == token) {
        sum += weight;
        return;
      }
    sums_.emplace_back(token, weight);
  }

  // The heaviest tokens, of equal weights the lesser token first, as shares of `total`.
  void heaviest(double total, Continuations& out) {
    const std::size_t size = std::min(sums_.size(), kContinuations);
    std::partial_sort(
        sums_.begin(), sums_.begin() + static_cast<std::ptrdiff_t>(size), sums_.end(),
        [](const auto& a, const auto& b) { return a.second != b.second ? a.second > b.second : a.first < b.first; });
    out.size = static_cast<std::uint32_t>(size);
    out.probes = 0;
    for (std::size_t i = 0; i < size; ++i) out.top[i] = {sums_[i].first, static_cast<float>(sums_[i].second / total)};
  }

 private:
  std::vector<std::pair<Token, double>> sums_;
};

// One match whose continuations are wanted: where its `length` tokens occur in each of `shards`, and how many
// occurrences are read at most.
struct ContinuationQuery {
  const std::vector<ShardView>* shards;
  std::uint32_t vocabulary;
  std::span<const Interval> intervals;
  std::uint32_t length;
  std::size_t samples;
  Continuations* out;
};

// Reads the next tokens of matches: all of them if they are few, else every n-th of the sorted suffixes, which misses
// no token with more than n occurrences. The queries of one call wait for memory together. Keeps its memory between
// calls.
class ContinuationReader {
 public:
  void read(std::span<const ContinuationQuery> queries) {
    probes_.clear();
    ends_.clear();
    for (const ContinuationQuery& query : queries) {
      plan(query);
      ends_.push_back(probes_.size());
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < queries.size(); ++i)
      for (; next < ends_[i]; ++next) {
        Probe& probe = probes_[next];
        probe.place = probe.shard->position(probe.place) + queries[i].length;
        prefetch(probe.shard->suffix(probe.place));
      }
    next = 0;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const std::size_t count = ends_[i] - next;
      weights_.clear();
      for (; next < ends_[i]; ++next) {
        const Probe& probe = probes_[next];
        const std::uint8_t* at = probe.shard->suffix(probe.place);
        Token token = 0;
        for (std::uint32_t byte = 0; byte < probe.shard->width; ++byte) token = token << 8 | at[byte];
        if (token < queries[i].vocabulary) weights_.add(token, 1);
      }
      Continuations& out = *queries[i].out;
      weights_.heaviest(static_cast<double>(count), out);
      out.probes = static_cast<std::uint32_t>(count);
    }
  }

 private:
  struct Probe {
    const ShardView* shard;
    std::uint64_t place;  // a rank, then a position
  };

  // Append the ranks that are read.
  void plan(const ContinuationQuery& query) {
    const std::vector<ShardView>& shards = *query.shards;
    std::uint64_t count = 0;
    for (const Interval& interval : query.intervals) count += interval.width();
    if (count == 0) return;
    const std::uint64_t stride = count <= query.samples ? 1 : (count + query.samples - 1) / query.samples;
    std::uint64_t skip = stride / 2;  // carried from shard to shard, so that shares do not depend on their number
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
  TokenWeights weights_;
};

}  // namespace rest_store
