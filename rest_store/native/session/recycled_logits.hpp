// Recycled logits (Luo et al., Turning Trash into Treasure: Token Recycling, arXiv 2408.08696): the target model's most
// likely next tokens, kept by the last tokens of the context, and proposed when these recur.
#pragma once

#include <functional>
#include <mutex>
#include <new>

#include "search/fork_mutex.hpp"
#include "session/likely_tokens.hpp"

namespace rest_store {

constexpr std::size_t kRecycledOrders = kShort;  // contexts are known by their last 1, 2, 3 and 4 tokens

// Thread-safe, so that generations may share one. Memory is bounded: new rows displace old ones.
class RecycledLogits {
 public:
  // After `tail` the most likely tokens were `top`. Without memory for more rows they are not kept: a generation can do
  // without.
  void learn(std::span<const Token> tail, const TopTokens& top) {
    if (top.size == 0) return;
    const std::lock_guard lock(mutex_);
    try {
      for (std::size_t order = 1; order <= kRecycledOrders && order <= tail.size(); ++order)
        likely_after(short_suffix(tail.last(order))).learn(top);
    } catch (const std::bad_alloc&) {
    }
  }

  // What is known after the last 1 .. 4 tokens of `tail`; of size 0 where nothing is.
  std::array<LikelyTokens, kRecycledOrders> find(std::span<const Token> tail) const {
    std::array<LikelyTokens, kRecycledOrders> out{};
    const std::lock_guard lock(mutex_);
    if (rows_.empty()) return out;
    const std::size_t orders = std::min(kRecycledOrders, tail.size());
    std::array<ShortSuffix, kRecycledOrders> keys;
    for (std::size_t i = 0; i < orders; ++i) {
      keys[i] = short_suffix(tail.last(i + 1));
      const auto* row = reinterpret_cast<const std::uint8_t*>(&rows_[place_of(keys[i], 0)]);
      prefetch(row);
      prefetch(row + sizeof(Row) - 1);
    }
    for (std::size_t i = 0; i < orders; ++i)
      for (std::size_t way = 0; way < kWays; ++way)
        if (const Row& row = rows_[place_of(keys[i], way)]; row.likely.size() > 0 && row.key == keys[i]) {
          out[i] = row.likely;
          break;
        }
    return out;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }

  // All rows, each in kWidth numbers: the last tokens, the last one first, the likely ones, their weights, and the
  // times. -1 where there are fewer tokens. A row ends at a token that is not below `vocabulary`: models have logits of
  // ids that are no tokens.
  static constexpr std::size_t kWidth = kRecycledOrders + 2 * kTopK + 1;
  std::vector<std::int32_t> rows(std::uint64_t vocabulary) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::int32_t> out;
    for (const auto& [key, likely] : rows_) {
      const auto is_no_token = [&](Token token) { return token >= vocabulary; };
      const std::span<const Token> tokens = likely.tokens();
      const auto count = std::find_if(tokens.begin(), tokens.end(), is_no_token) - tokens.begin();
      const auto known = std::find(key.begin(), key.end(), kNoToken);
      if (count == 0 || std::any_of(key.begin(), known, is_no_token)) continue;
      const std::size_t row = out.size();
      out.resize(row + kWidth, -1);
      const auto at = out.begin() + static_cast<std::ptrdiff_t>(row);
      std::copy(key.begin(), key.end(), at);
      std::copy_n(tokens.begin(), count, at + kRecycledOrders);
      std::copy_n(likely.weights().begin(), count, at + kRecycledOrders + kTopK);
      out.back() = static_cast<std::int32_t>(likely.times());
    }
    return out;
  }

  // Take in `rows` as rows() returns them, all of them or, if one is malformed or has a token that is not below
  // `vocabulary`, none. Returns whether they are well-formed.
  bool add_rows(std::span<const std::int32_t> rows, std::uint64_t vocabulary) {
    if (rows.size() % kWidth != 0) return false;
    for (std::size_t at = 0; at < rows.size(); at += kWidth)
      if (!is_row(rows.subspan(at, kWidth), vocabulary)) return false;
    const std::lock_guard lock(mutex_);
    // They come in the order of their places: in a smaller table they would displace each other.
    while (rows_.size() < kMaxRows && 2 * (used_ + rows.size() / kWidth) > rows_.size()) grow();
    for (std::size_t at = 0; at < rows.size(); at += kWidth) {
      const auto row = rows.subspan(at, kWidth), likely = row.subspan(kRecycledOrders, kTopK);
      const auto size = static_cast<std::size_t>(std::find(likely.begin(), likely.end(), -1) - likely.begin());
      ShortSuffix key;
      std::array<Token, kTopK> tokens;
      std::array<std::uint16_t, kTopK> weights;
      std::copy_n(row.begin(), kRecycledOrders, key.begin());
      std::copy_n(likely.begin(), size, tokens.begin());
      std::transform(likely.begin() + kTopK, likely.begin() + static_cast<std::ptrdiff_t>(kTopK + size),
                     weights.begin(), [](std::int32_t weight) { return static_cast<std::uint16_t>(weight); });
      likely_after(key) = LikelyTokens(std::span(tokens).first(size), std::span(weights).first(size),
                                       static_cast<std::uint8_t>(row.back()));
    }
    return true;
  }

 private:
  static constexpr std::size_t kLeastRows = std::size_t{1} << 10, kMaxRows = std::size_t{1} << 17;  // 68 bytes each
  static constexpr std::size_t kWays = 4;  // places that a row may take

  struct Row {
    ShortSuffix key;
    LikelyTokens likely;  // size 0: free
  };

  std::size_t place_of(const ShortSuffix& key, std::size_t way) const {
    return ((hash_of(key) >> 20) + way) & (rows_.size() - 1);
  }

  // Whether the numbers of `row` are tokens, weights and times.
  static bool is_row(std::span<const std::int32_t> row, std::uint64_t vocabulary) {
    const auto is_up_to = [](std::span<const std::int32_t> values, std::int64_t most) {
      return std::all_of(values.begin(), values.end(),
                         [&](std::int32_t value) { return -1 <= value && value <= most; });
    };
    const auto weights = row.subspan(kRecycledOrders + kTopK, kTopK);
    return is_up_to(row.first(kRecycledOrders + kTopK), static_cast<std::int64_t>(vocabulary) - 1) &&
           is_up_to(weights, LikelyTokens::kGreatestWeight) && is_up_to(row.last(1), LikelyTokens::kMostTimes) &&
           row.back() > 0;
  }

  // What is known after `key`, or a place for it.
  LikelyTokens& likely_after(const ShortSuffix& key) {
    if (rows_.size() < kMaxRows && 2 * (used_ + 1) > rows_.size()) grow();
    return place_for(key);
  }

  LikelyTokens& place_for(const ShortSuffix& key) {
    for (std::size_t way = 0; way < kWays; ++way) {
      Row& row = rows_[place_of(key, way)];
      if (row.likely.size() > 0 && row.key != key) continue;
      used_ += row.likely.size() == 0;
      row.key = key;
      return row.likely;
    }
    Row& row = rows_[place_of(key, next_way_++ % kWays)];
    row = {key, {}};
    return row.likely;
  }

  void grow() {
    std::vector<Row> old(std::max(kLeastRows, 2 * rows_.size()));
    old.swap(rows_);
    used_ = 0;
    for (const Row& row : old)
      if (row.likely.size() > 0) place_for(row.key) = row.likely;
  }

  mutable ForkMutex mutex_;
  std::vector<Row> rows_;
  std::size_t used_ = 0, next_way_ = 0;
};

}  // namespace rest_store
