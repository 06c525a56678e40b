// The nodes of a draft, how many of them pay, and the order in which they are verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "search/shard_view.hpp"

namespace rest_store {

struct DraftNode {
  Token token;
  std::int32_t parent;    // its index; -1: child of the context
  std::uint32_t depth;    // in tokens; 1: child of the context
  std::uint32_t origins;  // of its candidate
  float score;            // probability that it is accepted
  float probability;      // the same if its parent is accepted
};

// The number of `nodes`, in the order in which they were taken, with which a step produces most
// tokens in its time; of equal rates the least number. `costs[n]` is the time of a step that
// verifies n nodes, in any unit.
//
// A step produces one token, and each node with the probability that it is accepted: its score. A
// further node pays if it adds more tokens, in proportion, than time.
inline std::size_t pruned_size(std::span<const DraftNode> nodes, std::span<const double> costs) {
  double tokens = 1, best_rate = 0;
  std::size_t best = 0;
  for (std::size_t count = 0; count < costs.size() && count <= nodes.size(); ++count) {
    if (count > 0) tokens += static_cast<double>(nodes[count - 1].score);
    if (const double rate = tokens / costs[count]; rate > best_rate) {
      best_rate = rate;
      best = count;
    }
  }
  return best;
}

// Put nodes, which are in the order in which they were taken, into the order in which they are
// verified: the most probable path first, so that its KV cache entries are contiguous, then the
// others. Parents stay before their children. Returns the new index of each.
inline std::vector<std::int32_t> put_in_verification_order(std::vector<DraftNode>& nodes) {
  std::vector<std::int32_t> moved_to(nodes.size(), -1);
  std::int32_t last = -1, size = 0;
  // Of a node's children, the most probable one was taken first.
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].parent == last) {
      last = static_cast<std::int32_t>(i);
      moved_to[i] = size++;
    }
  for (std::int32_t& index : moved_to)
    if (index < 0) index = size++;
  const std::vector<DraftNode> taken = nodes;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    DraftNode& node = nodes[static_cast<std::size_t>(moved_to[i])] = taken[i];
    if (node.parent >= 0) node.parent = moved_to[static_cast<std::size_t>(node.parent)];
  }
  return moved_to;
}

// Put nodes, which are in the order in which they were taken, into the order of paths: right after
// a node comes the child that was taken first, if it has any. So the likeliest chain after each
// node is contiguous. Returns the new index of each.
inline std::vector<std::int32_t> put_in_path_order(std::vector<DraftNode>& nodes) {
  // Of each node, and of the context at the end, the children, the last one first.
  std::vector<std::int32_t> last_child(nodes.size() + 1, -1), sibling_before(nodes.size(), -1);
  const auto index_of = [&](std::int32_t parent) {
    return parent < 0 ? nodes.size() : static_cast<std::size_t>(parent);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i)
    sibling_before[i] =
        std::exchange(last_child[index_of(nodes[i].parent)], static_cast<std::int32_t>(i));
  std::vector<std::int32_t> moved_to(nodes.size());
  std::vector<std::int32_t> open;  // nodes that still have to be moved, the next one last
  const auto open_children = [&](std::size_t parent) {
    for (std::int32_t child = last_child[parent]; child >= 0;
         child = sibling_before[static_cast<std::size_t>(child)])
      open.push_back(child);
  };
  std::vector<DraftNode> ordered;
  ordered.reserve(nodes.size());
  for (open_children(nodes.size()); !open.empty();) {
    const auto node = static_cast<std::size_t>(open.back());
    open.pop_back();
    moved_to[node] = static_cast<std::int32_t>(ordered.size());
    ordered.push_back(nodes[node]);
    if (std::int32_t& parent = ordered.back().parent; parent >= 0)
      parent = moved_to[static_cast<std::size_t>(parent)];
    open_children(node);
  }
  nodes.swap(ordered);
  return moved_to;
}

// A lookahead is a draft for the step after the one that is verified now: for the likely outcomes
// of that one, the chains after them.
enum class Shape { kTree, kChain, kLookahead };

// Options of a draft. Owns nothing.
struct DraftOptions {
  std::size_t max_nodes;
  Shape shape = Shape::kTree;
  // costs[n] is the time of a step that verifies n nodes, and there are more of them than
  // `max_nodes`. Empty: all steps take the same time.
  std::span<const double> costs;
  // Of a lookahead: the draft that is verified meanwhile, and the most tokens of the next one.
  std::span<const Token> verified{};
  std::size_t length = 0;
};

}  // namespace rest_store
