// Packed draft trees, and the check of one that came from elsewhere. rest_store/datastore/tree.py describes the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace rest_store {

// Bytes of a node: count (8), then token, parent and depth (4 each), column by column.
inline constexpr std::size_t kNodeSize = 20;

// How large a draft tree may become.
struct Limits {
  std::uint32_t max_nodes;
  std::uint32_t max_depth;  // tokens
};

// A draft tree and the match that it continues.
struct PackedTree {
  std::uint32_t match_length = 0;  // tokens
  std::uint64_t match_count = 0;   // occurrences
  std::vector<char> nodes;         // packed
};

enum class TreeFault { kNone, kTokens, kParents, kDepths, kCounts };

// The first fault among `size` packed nodes at `data`, in this machine's byte order and however aligned.
inline TreeFault tree_fault(const char* data, std::size_t size, std::uint32_t vocabulary, std::int32_t max_depth) {
  const auto column = [&](std::size_t start, std::size_t node) {
    std::int32_t value = 0;
    std::memcpy(&value, data + size * start + node * sizeof value, sizeof value);
    return value;
  };
  for (std::size_t node = 0; node < size; ++node) {
    if (static_cast<std::uint32_t>(column(8, node)) >= vocabulary) return TreeFault::kTokens;
    const std::int32_t parent = column(12, node), depth = column(16, node);
    if (parent < -1 || (parent >= 0 && static_cast<std::size_t>(parent) >= node)) return TreeFault::kParents;
    const std::int32_t parent_depth = parent < 0 ? 0 : column(16, static_cast<std::size_t>(parent));
    if (depth > max_depth || depth != parent_depth + 1) return TreeFault::kDepths;
    std::int64_t count = 0;
    std::memcpy(&count, data + node * sizeof count, sizeof count);
    if (count < 1) return TreeFault::kCounts;
  }
  return TreeFault::kNone;
}

}  // namespace rest_store
