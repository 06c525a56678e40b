// Packed draft trees: writing one, and whether one from elsewhere is one. See rest_store/datastore/tree.py for the
// layout.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
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

  void add(std::int64_t count, std::int32_t token, std::int32_t parent, std::int32_t depth) {
    counts[size] = count;
    tokens[size] = token;
    parents[size] = parent;
    depths[size++] = depth;
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

// The columns of a tree in a block; they stay there until the block grows.
struct Columns {
  std::int64_t* counts;
  std::int32_t *tokens, *parents, *depths;

  void put(std::size_t place, std::int64_t count, std::int32_t token, std::int32_t parent, std::int32_t depth) const {
    counts[place] = count;
    tokens[place] = token;
    parents[place] = parent;
    depths[place] = depth;
  }
};

// Append a tree of `size` nodes to `block`, in which trees begin at multiples of eight bytes. The nodes are yet to be
// put into its columns.
inline Columns append_tree(Block& block, std::uint32_t match_length, std::uint64_t match_count, std::size_t size) {
  const TreeHeader header{match_count, match_length, static_cast<std::uint32_t>(kNodeSize * size)};
  const std::size_t start = block.size();
  block.resize(start + (sizeof header + header.size + 7) / 8 * 8);
  std::memcpy(block.data() + start, &header, sizeof header);
  auto* counts = reinterpret_cast<std::int64_t*>(block.data() + start + sizeof header);
  auto* tokens = reinterpret_cast<std::int32_t*>(counts + size);
  return {counts, tokens, tokens + size, tokens + 2 * size};
}

inline void append_tree(Block& block, std::uint32_t match_length, std::uint64_t match_count, const Nodes& nodes) {
  const Columns to = append_tree(block, match_length, match_count, nodes.size);
  std::copy_n(nodes.counts.data(), nodes.size, to.counts);
  std::copy_n(nodes.tokens.data(), nodes.size, to.tokens);
  std::copy_n(nodes.parents.data(), nodes.size, to.parents);
  std::copy_n(nodes.depths.data(), nodes.size, to.depths);
}

// A tree that is kept for those who ask again.
struct KeptTree {
  explicit KeptTree(Block tree) : block(std::move(tree)) {}

  Block block;                  // empty once it is shown
  std::shared_ptr<void> shown;  // what callers are given, made by them; theirs to guard
};

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
