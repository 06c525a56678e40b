// Recycled logits (Luo et al., Turning Trash into Treasure: Token Recycling, arXiv 2408.08696): the
// target model's most likely next tokens, stored by the last tokens of the context, and proposed
// when these recur.
#pragma once

#include <mutex>
#include <new>

#include "search/fork_mutex.hpp"
#include "session/likely_tokens.hpp"

namespace rest_store {

// Contexts are known by their last 1, 2, 3 and 4 tokens.
constexpr std::size_t kRecycledOrders = kShort;

// Thread-safe, so that generations may share one. Memory is bounded (9 MB): new rows displace old
// ones.
class RecycledLogits {
 public:
  RecycledLogits() = default;
  // A copy, which learns on its own.
  RecycledLogits(const RecycledLogits& other) {
    const std::lock_guard lock(other.mutex_);
    rows_ = other.rows_;
    used_ = other.used_;
    next_way_ = other.next_way_;
  }
  RecycledLogits& operator=(const RecycledLogits&) = delete;

  // Learn that the most likely tokens after `tail` were `top`. If there is no memory for more rows,
  // nothing more is learnt: a generation can do without.
  void learn(std::span<const Token> tail, const TopTokens& top) {
    if (top.size == 0) return;
    const std::lock_guard lock(mutex_);
    try {
      for (std::size_t order = 1; order <= kRecycledOrders && order <= tail.size(); ++order) {
        if (rows_.size() < kMaxRows && 2 * (used_ + 1) > rows_.size()) grow();
        likely_after(short_suffix(tail.last(order))).learn(top);
      }
    } catch (const std::bad_alloc&) {
    }
  }

  // The likely tokens after the last 1, 2, 3 and 4 tokens of `tail`; of size 0 where they are
  // unknown.
  std::array<LikelyTokens, kRecycledOrders> find(std::span<const Token> tail) const {
    std::array<LikelyTokens, kRecycledOrders> out{};
    const std::lock_guard lock(mutex_);
    if (rows_.empty()) return out;
    const std::size_t orders = std::min(kRecycledOrders, tail.size());
    std::array<ShortSuffix, kRecycledOrders> keys;
    for (std::size_t i = 0; i < orders; ++i) {
      keys[i] = short_suffix(tail.last(i + 1));
      const auto* row = reinterpret_cast<const std::uint8_t*>(&rows_[index_of(keys[i], 0)]);
      prefetch(row);
      prefetch(row + sizeof(Row) - 1);
    }
    for (std::size_t i = 0; i < orders; ++i)
      for (std::size_t way = 0; way < kWays; ++way)
        if (const Row& row = rows_[index_of(keys[i], way)];
            row.likely.size() > 0 && row.key == keys[i]) {
          out[i] = row.likely;
          break;
        }
    return out;
  }

  // Rows in use.
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  // The least and the most rows, of 68 bytes each.
  static constexpr std::size_t kMinRows = std::size_t{1} << 10, kMaxRows = std::size_t{1} << 17;
  static constexpr std::size_t kWays = 4;  // indices at which a key may be

  struct Row {
    ShortSuffix key;
    LikelyTokens likely;  // size 0: free
  };

  std::size_t index_of(const ShortSuffix& key, std::size_t way) const {
    return ((hash_of(key) >> 20) + way) & (rows_.size() - 1);
  }

  // The likely tokens after `key`: those of its row, or of a new one. If others have all of its
  // indices, one of them is displaced, each time the next.
  LikelyTokens& likely_after(const ShortSuffix& key) {
    for (std::size_t way = 0; way < kWays; ++way) {
      Row& row = rows_[index_of(key, way)];
      if (row.likely.size() > 0 && row.key != key) continue;
      used_ += row.likely.size() == 0;
      row.key = key;
      return row.likely;
    }
    Row& row = rows_[index_of(key, next_way_++ % kWays)];
    row = {key, {}};
    return row.likely;
  }

  // Double the number of rows.
  void grow() {
    std::vector<Row> old(std::max(kMinRows, 2 * rows_.size()));
    old.swap(rows_);
    used_ = 0;
    for (const Row& row : old)
      if (row.likely.size() > 0) likely_after(row.key) = row.likely;
  }

  mutable ForkMutex mutex_;
  std::vector<Row> rows_;
  std::size_t used_ = 0, next_way_ = 0;
};

}  // namespace rest_store
