// Packed draft trees: writing one, and whether one from elsewhere is one. See rest_store/tree.py for the layout.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace rest_store {

// Bytes of a node: count (8), then token, parent and depth (4 each), column by column.
inline constexpr std::size_t kNodeSize = 20;

// The nodes of a draft tree, column by column.
struct Nodes {
  std::size_t size = 0;
  std::vector<std::int64_t> counts;
  std::vector<std::int32_t> tokens, parents, depths;

  void clear(std::size_t room) {
    size = 0;
    if (counts.size() >= room) return;
    counts.resize(room);
    for (auto* column : {&tokens, &parents, &depths}) column->resize(room);
  }

  void put(std::size_t place, std::int64_t count, std::int32_t token, std::int32_t parent, std::int32_t depth) {
    counts[place] = count;
    tokens[place] = token;
    parents[place] = parent;
    depths[place] = depth;
  }

  void add(std::int64_t count, std::int32_t token, std::int32_t parent, std::int32_t depth) {
    put(size++, count, token, parent, depth);
  }
};

using Block = std::vector<char>;

// What stands before the nodes of a tree in a block.
struct TreeHeader {
  std::uint64_t match_count;
  std::uint32_t match_length;
  std::uint32_t size;  // of the packed nodes, in bytes
};
static_assert(sizeof(TreeHeader) == 16);

// Append a tree to `block`, in which trees begin at multiples of eight bytes.
inline void append_tree(Block& block, std::uint32_t match_length, std::uint64_t match_count, const Nodes& nodes) {
  const TreeHeader header{match_count, match_length, static_cast<std::uint32_t>(kNodeSize * nodes.size)};
  const std::size_t start = block.size();
  block.resize(start + (sizeof header + header.size + 7) / 8 * 8);
  char* to = block.data() + start;
  const auto put = [&to](const void* from, std::size_t size) {
    if (size > 0) std::memcpy(to, from, size);
    to += size;
  };
  put(&header, sizeof header);
  put(nodes.counts.data(), 8 * nodes.size);
  for (const auto* column : {&nodes.tokens, &nodes.parents, &nodes.depths}) put(column->data(), 4 * nodes.size);
}

enum class TreeFault { kNone, kTokens, kParents, kDepths, kCounts };

// The first fault found among `size` nodes of `data`, in this machine's byte order and however aligned.
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
    const std::int32_t above = parent < 0 ? 0 : column(16, static_cast<std::size_t>(parent));
    if (depth > max_depth || depth != above + 1) return TreeFault::kDepths;
    std::int64_t count = 0;
    std::memcpy(&count, data + node * sizeof count, sizeof count);
    if (count < 1) return TreeFault::kCounts;
  }
  return TreeFault::kNone;
}

}  // namespace rest_store
