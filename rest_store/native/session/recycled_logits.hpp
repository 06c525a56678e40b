// Recycled logits (Luo et al., Turning Trash into Treasure: Token Recycling, arXiv 2408.08696): the target model's most
// likely next tokens, kept by the last tokens of the context, and proposed when these recur.
#pragma once

#include <mutex>

#include "search/fork_mutex.hpp"
#include "session/continuations.hpp"

namespace rest_store {

constexpr std::size_t kTopK = 8;            // most likely tokens kept of one context
constexpr std::size_t kRecycledOrders = 3;  // contexts are known by their last 1, 2 and 3 tokens

struct TopTokens {
  std::uint32_t size = 0;  // 0: unknown
  std::array<Token, kTopK> tokens{};

  // 0 for the most likely; kTopK for a token that is not among them.
  std::uint32_t rank(Token token) const {
    for (std::uint32_t i = 0; i < size; ++i)
      if (tokens[i] == token) return i;
    return kTopK;
  }
};

// Thread-safe, so that generations may share one. Memory is bounded: new rows displace old ones.
class RecycledLogits {
 public:
  // After `tail` the most likely tokens were `top`.
  void learn(std::span<const Token> tail, const TopTokens& top) {
    if (top.size == 0) return;
    const std::lock_guard lock(mutex_);
    if (rows_.empty()) rows_.resize(std::size_t{1} << 10);
    for (std::size_t order = 1; order <= kRecycledOrders && order <= tail.size(); ++order) {
      if (rows_.size() < kMaxRows && 2 * (used_ + 1) > rows_.size()) grow();
      put({key_of(tail.last(order)), top});
    }
  }

  // The rows of the last 1, 2 and 3 tokens of `tail`; of size 0 where there are none.
  std::array<TopTokens, kRecycledOrders> find(std::span<const Token> tail) const {
    std::array<TopTokens, kRecycledOrders> out{};
    const std::lock_guard lock(mutex_);
    if (rows_.empty()) return out;
    for (std::size_t order = 1; order <= kRecycledOrders && order <= tail.size(); ++order) {
      const Key key = key_of(tail.last(order));
      for (std::size_t way = 0; way < kWays; ++way)
        if (const Row& row = rows_[place_of(key, way)]; row.top.size > 0 && row.key == key) out[order - 1] = row.top;
    }
    return out;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }

  // Bytes of its rows.
  std::size_t memory() const {
    const std::lock_guard lock(mutex_);
    return rows_.capacity() * sizeof(Row);
  }

 private:
  static constexpr std::size_t kMaxRows = std::size_t{1} << 17;  // rows; 48 bytes each
  static constexpr std::size_t kWays = 4;                        // places that a row may take

  // The last tokens of a context, the last one first, padded with a value that is not a token.
  using Key = std::array<Token, kRecycledOrders>;

  struct Row {
    Key key;
    TopTokens top;  // size 0: free
  };

  static Key key_of(std::span<const Token> tokens) {
    Key key;
    key.fill(~Token{0});
    std::copy(tokens.rbegin(), tokens.rend(), key.begin());
    return key;
  }

  std::size_t place_of(const Key& key, std::size_t way) const {
    return ((hash_of(key) >> 20) + way) & (rows_.size() - 1);
  }

  void put(const Row& row) {
    for (std::size_t way = 0; way < kWays; ++way) {
      Row& place = rows_[place_of(row.key, way)];
      if (place.top.size > 0 && place.key != row.key) continue;
      used_ += place.top.size == 0;
      place = row;
      return;
    }
    rows_[place_of(row.key, next_way_++ % kWays)] = row;
  }

  void grow() {
    std::vector<Row> old(2 * rows_.size());
    old.swap(rows_);
    used_ = 0;
    for (const Row& row : old)
      if (row.top.size > 0) put(row);
  }

  mutable ForkMutex mutex_;
  std::vector<Row> rows_;
  std::size_t used_ = 0, next_way_ = 0;
};

}  // namespace rest_store
