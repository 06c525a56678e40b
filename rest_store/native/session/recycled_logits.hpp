// RecycledLogits logits: the target model's most likely next tokens where it has been asked, kept for the next time
// that the same tokens come by (Luo et al., Turning Trash into Treasure: Token Recycling, arXiv 2408.08696).
#pragma once

#include <mutex>

#include "session/continuations.hpp"

namespace rest_store {

constexpr std::size_t kTopK = 8;            // most likely tokens kept of one place
constexpr std::size_t kRecycledOrders = 3;  // places are known by their last 1, 2 and 3 tokens

struct TopTokens {
  std::uint32_t size = 0;  // 0: nothing is known
  std::array<Token, kTopK> tokens{};

  // 0: the most likely; `kTopK` if it is not among them.
  std::uint32_t rank(Token token) const {
    for (std::uint32_t i = 0; i < size; ++i)
      if (tokens[i] == token) return i;
    return kTopK;
  }
};

// Thread-safe, so that generations may share one. A new row takes the place of an old one: memory is bounded.
class RecycledLogits {
 public:
  // After `tail` the most likely tokens were `top`.
  void learn(std::span<const Token> tail, const TopTokens& top) {
    if (top.size == 0) return;
    const std::lock_guard lock(mutex_);
    if (rows_.empty()) rows_.resize(std::size_t{1} << 10);
    for (std::size_t order = 1; order <= kRecycledOrders && order <= tail.size(); ++order) {
      if (rows_.size() < kMost && 2 * (used_ + 1) > rows_.size()) spread();
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

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 17;  // rows; 48 bytes each
  static constexpr std::size_t kWays = 4;                     // places where a row may lie

  // The last tokens of a place, the last one first; the rest of the array holds a value that is no token.
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
    std::uint64_t hash = 0;
    for (const Token token : key) {
      hash = (hash ^ token) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29;
    }
    return ((hash >> 20) + way) & (rows_.size() - 1);
  }

  void put(const Row& row) {
    for (std::size_t way = 0; way < kWays; ++way) {
      Row& place = rows_[place_of(row.key, way)];
      if (place.top.size > 0 && place.key != row.key) continue;
      used_ += place.top.size == 0;
      place = row;
      return;
    }
    rows_[place_of(row.key, turn_++ % kWays)] = row;
  }

  void spread() {
    std::vector<Row> old(2 * rows_.size());
    old.swap(rows_);
    used_ = 0;
    for (const Row& row : old)
      if (row.top.size > 0) put(row);
  }

  mutable std::mutex mutex_;
  std::vector<Row> rows_;
  std::size_t used_ = 0, turn_ = 0;
};

}  // namespace rest_store
