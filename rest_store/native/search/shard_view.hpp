// A shard as the kernel reads it: pointers into the mappings of its two files (FORMAT.md, sections
// 2 and 3).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rest_store {

using Rank = std::uint64_t;
using Position = std::uint64_t;
using Token = std::uint32_t;

constexpr std::uint64_t kKeyStride = 64;  // ranks from one key to the next
constexpr std::size_t kMaxSuffix = 64;    // tokens of a match
constexpr std::size_t kMaxDepth = 32;     // tokens of a continuation in an exact tree
// Tokens of a sequence that is counted: a match and its continuation.
constexpr std::size_t kMaxSequence = kMaxSuffix + kMaxDepth;
constexpr std::size_t kMaxNodes = 1024;  // of a tree
constexpr std::size_t kMaxWidth = 3;     // bytes of a token

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the kernel reads little-endian files in place");

// Eight bytes as a little-endian number.
inline std::uint64_t load_little(const std::uint8_t* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Eight bytes as a number whose order is their lexicographic order.
inline std::uint64_t load_big(const std::uint8_t* at) { return __builtin_bswap64(load_little(at)); }

inline void prefetch(const void* at) { __builtin_prefetch(at); }

// Compare the first `size` bytes (>= 1) at `a` and at `b`, eight at a time. Wherever all bytes
// before were equal, eight more must be readable. That is true of a suffix: a shard ends with a
// separator, and no pattern contains one. (Where the separator was lost with its page, FileMapping
// has a page behind it.)
inline int compare_bytes(const std::uint8_t* a, const std::uint8_t* b, std::size_t size) {
  for (; size > 8; a += 8, b += 8, size -= 8) {
    const std::uint64_t x = load_big(a), y = load_big(b);
    if (x != y) return x < y ? -1 : 1;
  }
  const unsigned unused = 64 - 8 * static_cast<unsigned>(size);
  const std::uint64_t x = load_big(a) >> unused, y = load_big(b) >> unused;
  return x < y ? -1 : x > y;
}

// Owns nothing: the mappings outlive it. Read-only, so thread-safe.
struct ShardView {
  // The tokens and separators of all documents, `width` big-endian bytes each, followed by eight
  // readable bytes.
  const std::uint8_t* symbols;
  const std::uint64_t* keys;     // load_big() of every kKeyStride-th suffix, in suffix order
  const std::uint8_t* entries;   // the suffix array, `bits` each, followed by eight readable bytes
  std::uint64_t position_count;  // of the symbols, at least 1
  std::uint64_t entry_count;     // ranks of the suffix array
  std::uint64_t key_count;
  std::uint32_t width;  // bytes of a symbol, 2 or 3
  std::uint32_t bits;   // of an entry

  // The memory that position() reads, for prefetching.
  const std::uint8_t* entry_address(Rank rank) const { return entries + ((rank * bits) >> 3); }

  // The suffix array at `rank`; a position of the shard even if the file is damaged.
  Position position(Rank rank) const {
    const std::uint64_t bit = rank * bits;
    const std::uint64_t value = load_little(entries + (bit >> 3)) >> (bit & 7);
    return std::min(value & ((std::uint64_t{1} << bits) - 1), position_count - 1);
  }

  // The bytes of the symbols from `position` on; a position past the end is the last one, a
  // separator.
  const std::uint8_t* suffix(Position position) const {
    return symbols + width * std::min(position, position_count - 1);
  }
};

// Where a token sequence occurs in one shard: ranks begin .. end - 1.
struct Interval {
  Rank begin = 0;
  Rank end = 0;
  std::uint64_t width() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

}  // namespace rest_store
