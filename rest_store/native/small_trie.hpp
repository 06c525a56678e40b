// The heaviest continuations of a match with few occurrences: all of them are read, and their trie is spread level by
// level.
#pragma once

#include <array>
#include <vector>

#include "match.hpp"
#include "packed_tree.hpp"
#include "rows.hpp"

namespace rest_store {

class SmallTrie {
 public:
  static constexpr std::size_t kRows = 64;  // occurrences, at most

  // Append to `tree`, which is empty and has the room, the `max_nodes` heaviest continuations of `match`, of at most
  // `shape.depth` tokens, in the order of Drafter::draft.
  void draft(const std::vector<ShardView>& shards, const Match& match, const RowShape& shape, std::uint32_t max_nodes,
             Nodes& tree) {
    shape_ = shape;
    locate_rows(shards, match);
    read_rows();
    spread(max_nodes);
    place(max_nodes, tree);
  }

 private:
  // Where a row lies.
  struct Text {
    const ShardView* shard;
    const std::uint8_t* at;
  };

  // A node of the trie: the first `depth` tokens of rows begin .. begin + count - 1.
  struct Node {
    std::uint8_t begin, count, depth;
    std::int16_t parent;  // its place among nodes; -1: child of the context
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

  // Lay out the nodes by depth, then by row: those of equal counts are so in the order of drafts. Of those that occur
  // once only the first `max_nodes` can be in one.
  void spread(std::uint32_t max_nodes) {
    nodes_.clear();
    std::uint32_t singles = 0;
    const auto split = [&](std::int16_t parent, std::size_t begin, std::size_t end, std::uint32_t depth) {
      while (begin < end) {
        std::size_t next = begin + 1;
        while (next < end && shared_[next] >= depth) ++next;
        if (length(begin) >= depth && (next - begin > 1 || singles++ < max_nodes))
          nodes_.push_back({static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(next - begin),
                            static_cast<std::uint8_t>(depth), parent});
        begin = next;
      }
    };
    split(-1, 0, rows_, 1);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node above = nodes_[i];
      if (above.depth == shape_.depth) break;
      split(static_cast<std::int16_t>(i), above.begin, std::size_t{above.begin} + above.count, above.depth + 1U);
    }
  }

  // Sort the nodes by count, greatest first, and keep the first.
  void place(std::uint32_t max_nodes, Nodes& tree) {
    std::array<std::uint16_t, kRows + 2> starts{};  // of each count: the nodes that occur more often
    for (const Node& node : nodes_) ++starts[node.count];
    std::uint16_t heavier = 0;
    for (std::size_t count = rows_; count > 0; --count) {
      const std::uint16_t these = starts[count];
      starts[count] = heavier;
      heavier = static_cast<std::uint16_t>(heavier + these);
    }
    places_.resize(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      const std::uint16_t to = places_[i] = starts[node.count]++;
      if (to >= max_nodes) continue;
      const std::int32_t parent = node.parent < 0 ? -1 : places_[static_cast<std::size_t>(node.parent)];
      tree.put(to, node.count, static_cast<std::int32_t>(shape_.token(row(order_[node.begin]), node.depth - 1U)),
               parent, node.depth);
    }
    tree.size = std::min<std::size_t>(max_nodes, nodes_.size());
  }

  const std::uint8_t* row(const Head& head) const { return bytes_.data() + head.row * shape_.bytes; }
  std::uint32_t length(std::size_t i) const { return lengths_[order_[i].row]; }  // of row i in lexicographic order

  RowShape shape_;
  std::size_t rows_ = 0, sources_ = 0;  // rows, and runs of rows of one shard
  std::array<Text, kRows> texts_;
  std::array<std::uint8_t, kRows*(kMaxDepth* kMaxWidth + 8)> bytes_;
  std::array<std::uint8_t, kRows> lengths_;  // tokens of each row before a separator
  std::array<Head, kRows> order_;            // rows in lexicographic order
  std::array<std::uint8_t, kRows> shared_;   // tokens that a row has in common with the one before, in that order
  std::vector<Node> nodes_;
  std::vector<std::uint16_t> places_;  // of nodes in the tree
};

}  // namespace rest_store
