// Rows: continuations copied from a shard into whole words, which makes them quick to compare.
#pragma once

#include "search/shard_view.hpp"

namespace rest_store {

// The layout of rows: `depth` symbols; from the first separator on bytes of 0xFF, which sort after every token.
struct RowShape {
  std::uint32_t depth = 0;  // symbols
  std::uint32_t width = 0;  // bytes of one
  std::uint32_t vocabulary = 0;
  std::size_t bytes = 0;      // of a row, with its padding
  std::uint64_t padding = 0;  // of the last eight

  RowShape() = default;
  RowShape(std::uint32_t symbols, std::uint32_t symbol_width, std::uint32_t tokens)
      : depth(symbols), width(symbol_width), vocabulary(tokens), bytes((width * depth + 7) / 8 * 8) {
    if (bytes > width * depth) padding = ~std::uint64_t{0} << (8 * (8 - (bytes - width * depth)));
  }

  // Prefetch what copy() reads.
  void prefetch_row(const std::uint8_t* from) const {
    prefetch(from);
    prefetch(from + bytes - 1);
  }

  // Copy the row at `from`; return the number of its tokens before a separator.
  std::uint32_t copy(const ShardView& shard, const std::uint8_t* from, std::uint8_t* to) const {
    const auto left = static_cast<std::size_t>(shard.symbols + shard.position_count * width - from);
    std::size_t readable = width * depth;
    if (left >= readable) {
      for (std::size_t i = 0; i < bytes; i += 8) std::memcpy(to + i, from + i, 8);  // up to 7 bytes of the tail
    } else {
      readable = left;
      std::memcpy(to, from, readable);
    }
    const auto limit = static_cast<std::uint32_t>(readable / width);
    std::uint32_t length = 0;
    while (length < limit && token(to, length) < vocabulary) ++length;
    if (length < depth) {
      std::memset(to + width * length, 0xFF, bytes - width * length);
    } else {
      const std::uint64_t last = load_little(to + bytes - 8) | padding;
      std::memcpy(to + bytes - 8, &last, 8);
    }
    return length;
  }

  // Length of the common prefix of two rows in tokens, at most `limit`.
  std::uint32_t common_prefix(const std::uint8_t* a, const std::uint8_t* b, std::uint32_t limit) const {
    for (std::size_t at = 0; at < bytes; at += 8) {
      const std::uint64_t difference = load_little(a + at) ^ load_little(b + at);
      if (difference != 0)
        return std::min(limit, static_cast<std::uint32_t>((at + __builtin_ctzll(difference) / 8) / width));
    }
    return limit;
  }

  Token token(const std::uint8_t* row, std::uint32_t place) const {
    const std::uint8_t* at = row + width * place;
    const Token two = static_cast<Token>(at[0]) << 8 | at[1];
    return width == 2 ? two : two << 8 | at[2];
  }
};

}  // namespace rest_store
