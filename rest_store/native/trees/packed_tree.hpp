// Packed draft trees: making one, and checking one that came from elsewhere. rest_store/datastore/tree.py describes the
// layout.
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
  bool operator==(const Limits&) const = default;
};

// A draft tree and the match that it continues.
struct PackedTree {
  std::uint32_t match_length = 0;  // tokens
  std::uint64_t match_count = 0;   // occurrences
  std::vector<char> nodes;         // packed

  // The least count of its nodes, which have the greatest counts; 0 if there are fewer than `limits` allow.
  std::uint64_t least_of(const Limits& limits) const {
    std::uint64_t count = 0;
    if (nodes.size() == kNodeSize * limits.max_nodes)
      std::memcpy(&count, nodes.data() + (limits.max_nodes - 1) * sizeof count, sizeof count);
    return count;
  }
};

// The nodes of a tree in the making.
class TreeColumns {
 public:
  void clear() {
    counts_.clear();
    for (auto* column : {&tokens_, &parents_, &depths_}) column->clear();
  }

  std::size_t size() const { return counts_.size(); }

  void add(std::uint64_t count, std::uint32_t token, std::int32_t parent, std::uint32_t depth) {
    counts_.push_back(static_cast<std::int64_t>(count));
    tokens_.push_back(static_cast<std::int32_t>(token));
    parents_.push_back(parent);
    depths_.push_back(static_cast<std::int32_t>(depth));
  }

  std::vector<char> pack() const {
    std::vector<char> out;
    out.reserve(kNodeSize * size());
    const auto append = [&out](const auto& column) {
      const char* bytes = reinterpret_cast<const char*>(column.data());
      out.insert(out.end(), bytes, bytes + column.size() * sizeof column[0]);
    };
    append(counts_);
    append(tokens_);
    append(parents_);
    append(depths_);
    return out;
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<std::int32_t> tokens_, parents_, depths_;
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
