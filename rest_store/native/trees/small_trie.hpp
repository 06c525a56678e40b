// The heaviest continuations of a match with few occurrences: all of them are read, and the few nodes of their trie
// that occur more than once are sorted.
#pragma once

#include <array>
#include <vector>

#include "search/match.hpp"
#include "trees/packed_tree.hpp"
#include "trees/rows.hpp"

namespace rest_store {

class SmallTrie {
 public:
  static constexpr std::size_t kRows = 64;  // occurrences, at most

  // Append to `block` the tree of the `max_nodes` heaviest continuations of `match`, of at most `shape.depth` tokens,
  // in the order of Drafter::draft.
  void draft(const std::vector<ShardView>& shards, const Match& match, const RowShape& shape, std::uint32_t max_nodes,
             Block& block) {
    shape_ = shape;
    locate_rows(shards, match);
    read_rows();
    gather();
    const std::size_t size = std::min<std::size_t>(max_nodes, nodes_.size() + singles_);
    const Columns tree = append_tree(block, match.length, match.count, size);
    put_nodes(tree, size);
    put_singles(tree, size);
  }

 private:
  // Where a row lies.
  struct Text {
    const ShardView* shard;
    const std::uint8_t* at;
  };

  // A node of the trie with two rows or more: the first `depth` tokens of rows begin .. begin + count - 1.
  struct Node {
    std::uint8_t begin, count, depth;
    std::uint16_t parent;  // its place among nodes, if it is not a child of the context
  };

  // A row's place among those read, and its first eight bytes.
  struct Head {
    std::uint64_t key;
    std::uint8_t row;
  };

  void locate_rows(const std::vector<ShardView>& shards, const Match& match) {
    rows_ = sources_ = 0;
    const auto add = [&](const ShardView& shard, Position position) {
      if (rows_ == kRows) return;  // never, but of a damaged file
      if (rows_ == 0 || texts_[rows_ - 1].shard != &shard) ++sources_;
      texts_[rows_++] = {&shard, shard.suffix(position + match.skip)};
      shape_.ask(texts_[rows_ - 1].at);
    };
    if (!match.occurrences.empty()) {
      for (const Occurrence& one : match.occurrences) add(shards[one.shard], one.position);
      return;
    }
    for (const bool asked : {false, true})
      for (std::size_t s = 0; s < shards.size(); ++s)
        for (Rank rank = match.intervals[s].begin; rank < match.intervals[s].end; ++rank)
          if (asked) add(shards[s], shards[s].position(rank));
          else prefetch(shards[s].entry_address(rank));
  }

  // Copy the rows, find their lexicographic order and what each has in common with the one before.
  void read_rows() {
    for (std::size_t i = 0; i < rows_; ++i) {
      std::uint8_t* row = bytes_.data() + i * shape_.bytes;
      lengths_[i] = static_cast<std::uint8_t>(shape_.copy(*texts_[i].shard, texts_[i].at, row));
      order_[i] = {load_big(row), static_cast<std::uint8_t>(i)};
    }
    if (sources_ > 1)
      std::sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(rows_),
                [this](const Head& a, const Head& b) {
                  if (a.key != b.key) return a.key < b.key;
                  return std::memcmp(row(a), row(b), shape_.bytes) < 0;
                });
    shared_[0] = 0;
    for (std::size_t i = 1; i < rows_; ++i) {
      const std::uint32_t limit = std::min(length(i - 1), length(i));
      shared_[i] = static_cast<std::uint8_t>(shape_.common_prefix(row(order_[i - 1]), row(order_[i]), limit));
    }
  }

  // Find the nodes with two rows or more, and how many there are with one at each depth: a row's tokens behind those
  // that it has in common with its neighbours.
  void gather() {
    nodes_.clear();
    starts_.fill(0);
    std::array<std::uint16_t, kMaxDepth + 1> open{};  // the node of each depth that the row is in
    for (std::size_t i = 0; i < rows_; ++i) {
      const std::uint32_t before = shared_[i], behind = i + 1 < rows_ ? shared_[i + 1] : 0;
      for (std::uint32_t depth = before + 1; depth <= behind; ++depth) {
        open[depth] = static_cast<std::uint16_t>(nodes_.size());
        nodes_.push_back({static_cast<std::uint8_t>(i), 0, static_cast<std::uint8_t>(depth), open[depth - 1]});
      }
      for (std::uint32_t depth = before; depth > behind; --depth) {
        Node& ended = nodes_[open[depth]];
        ended.count = static_cast<std::uint8_t>(i + 1 - ended.begin);
      }
      const std::uint32_t common = std::max(before, behind);
      common_[i] = static_cast<std::uint8_t>(common);
      parents_[i] = open[common];
      ++starts_[common + 1];
      --starts_[length(i) + 1];
    }
    // From how many more begin at a depth than end before it, to how many there are at it, to how many at lesser ones.
    singles_ = 0;
    std::uint16_t here = 0;
    for (std::uint32_t depth = 1; depth <= shape_.depth; ++depth) {
      here = static_cast<std::uint16_t>(here + starts_[depth]);
      starts_[depth] = static_cast<std::uint16_t>(singles_);
      singles_ += here;
    }
  }

  // Put the first `size` of the nodes with two rows or more into `tree`: by count, greatest first, then by depth, then
  // by row.
  void put_nodes(const Columns& tree, std::size_t size) {
    keys_.clear();
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      keys_.push_back(std::uint32_t{kRows - nodes_[i].count} << 24 | std::uint32_t{nodes_[i].depth} << 16 |
                      static_cast<std::uint32_t>(i));
    std::sort(keys_.begin(), keys_.end());
    places_.resize(keys_.size());
    for (std::size_t to = 0; to < keys_.size(); ++to) {
      const std::size_t i = keys_[to] & 0xFFFF;
      const Node& node = nodes_[i];
      places_[i] = static_cast<std::int32_t>(to);
      if (to < size)
        tree.put(to, node.count, token(node.begin, node.depth), node.depth == 1 ? -1 : places_[node.parent],
                 node.depth);
    }
  }

  // Put those with one row behind them, by depth, then by row, as far as `size` reaches.
  void put_singles(const Columns& tree, std::size_t size) {
    for (std::size_t i = 0; i < rows_; ++i) {
      std::uint32_t depth = common_[i];
      std::int32_t parent = depth == 0 ? -1 : places_[parents_[i]];
      while (++depth <= length(i)) {
        const std::size_t to = nodes_.size() + starts_[depth]++;
        if (to >= size) break;
        tree.put(to, 1, token(i, depth), parent, static_cast<std::int32_t>(depth));
        parent = static_cast<std::int32_t>(to);
      }
    }
  }

  const std::uint8_t* row(const Head& head) const { return bytes_.data() + head.row * shape_.bytes; }
  std::uint32_t length(std::size_t i) const { return lengths_[order_[i].row]; }  // of row i in lexicographic order
  std::int32_t token(std::size_t i, std::uint32_t depth) const {
    return static_cast<std::int32_t>(shape_.token(row(order_[i]), depth - 1));
  }

  RowShape shape_;
  std::size_t rows_ = 0, sources_ = 0;  // rows, and runs of rows of one shard
  std::array<Text, kRows> texts_;
  std::array<std::uint8_t, kRows*(kMaxDepth* kMaxWidth + 8)> bytes_;
  std::array<std::uint8_t, kRows> lengths_;   // tokens of each row before a separator
  std::array<Head, kRows> order_;             // rows in lexicographic order
  std::array<std::uint8_t, kRows> shared_;    // tokens that a row has in common with the one before, in that order
  std::array<std::uint8_t, kRows> common_;    // that it has in common with either of its neighbours
  std::array<std::uint16_t, kRows> parents_;  // and the node of these
  std::array<std::uint16_t, kMaxDepth + 2> starts_;  // of each depth: the nodes with one row at lesser depths
  std::size_t singles_ = 0;                          // nodes with one row
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> keys_;   // nodes by weight
  std::vector<std::int32_t> places_;  // of nodes in the tree
};

}  // namespace rest_store
