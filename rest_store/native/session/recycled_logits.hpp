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
    for (std::size_t order = 1; order <= kRecycledOrders && order <= tail.size(); ++order)
      add({key_of(tail.last(order)), top});
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

  // All rows, each in kWidth numbers: the last tokens, the last one first, then the most likely ones; -1 where there
  // are fewer. A row ends at a token that is not below `vocabulary`: models have logits of ids that are no tokens.
  static constexpr std::size_t kWidth = kRecycledOrders + kTopK;
  std::vector<std::int32_t> rows(std::uint64_t vocabulary) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::int32_t> out;
    for (const auto& [key, top] : rows_) {
      const auto is_no_token = [&](Token token) { return token >= vocabulary; };
      const auto likely = std::span(top.tokens).first(top.size);
      const auto end = std::find_if(likely.begin(), likely.end(), is_no_token);
      const auto known = std::find(key.begin(), key.end(), kNoToken);
      if (end == likely.begin() || std::any_of(key.begin(), known, is_no_token)) continue;
      out.insert(out.end(), key.begin(), key.end());
      out.insert(out.end(), likely.begin(), end);
      out.resize(out.size() + kTopK - static_cast<std::size_t>(end - likely.begin()), -1);
    }
    return out;
  }

  // Take in `rows` as rows() returns them, all of them or, if one is malformed or has a token that is not below
  // `vocabulary`, none. Returns whether they are well-formed.
  bool add_rows(std::span<const std::int32_t> rows, std::uint64_t vocabulary) {
    if (rows.size() % kWidth != 0) return false;
    const auto is_token = [&](std::int32_t value) {
      return value >= 0 && static_cast<std::uint64_t>(value) < vocabulary;
    };
    const auto is_filled_up = [&](std::span<const std::int32_t> values) {  // at least one token, then -1
      const auto end = std::find(values.begin(), values.end(), -1);
      return end != values.begin() && std::all_of(values.begin(), end, is_token) &&
             std::all_of(end, values.end(), [](std::int32_t value) { return value == -1; });
    };
    for (std::size_t at = 0; at < rows.size(); at += kWidth)
      if (!is_filled_up(rows.subspan(at, kRecycledOrders)) || !is_filled_up(rows.subspan(at + kRecycledOrders, kTopK)))
        return false;
    const std::lock_guard lock(mutex_);
    // They come in the order of their places: in a smaller table they would displace each other.
    while (rows_.size() < kMaxRows && 2 * (used_ + rows.size() / kWidth) > rows_.size()) grow();
    for (std::size_t at = 0; at < rows.size(); at += kWidth) {
      Row row{};
      for (std::size_t i = 0; i < kRecycledOrders; ++i) row.key[i] = static_cast<Token>(rows[at + i]);
      for (std::size_t i = kRecycledOrders; i < kWidth && rows[at + i] >= 0; ++i)
        row.top.tokens[row.top.size++] = static_cast<Token>(rows[at + i]);
      add(row);
    }
    return true;
  }

  // Bytes of its rows.
  std::size_t memory() const {
    const std::lock_guard lock(mutex_);
    return rows_.capacity() * sizeof(Row);
  }

 private:
  static constexpr std::size_t kLeastRows = std::size_t{1} << 10, kMaxRows = std::size_t{1} << 17;  // 48 bytes each
  static constexpr std::size_t kWays = 4;  // places that a row may take

  static constexpr Token kNoToken = ~Token{0};

  // The last tokens of a context, the last one first, filled up with kNoToken.
  using Key = std::array<Token, kRecycledOrders>;

  struct Row {
    Key key;
    TopTokens top;  // size 0: free
  };

  static Key key_of(std::span<const Token> tokens) {
    Key key;
    key.fill(kNoToken);
    std::copy(tokens.rbegin(), tokens.rend(), key.begin());
    return key;
  }

  std::size_t place_of(const Key& key, std::size_t way) const {
    return ((hash_of(key) >> 20) + way) & (rows_.size() - 1);
  }

  void add(const Row& row) {
    if (rows_.size() < kMaxRows && 2 * (used_ + 1) > rows_.size()) grow();
    put(row);
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
    std::vector<Row> old(std::max(kLeastRows, 2 * rows_.size()));
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
