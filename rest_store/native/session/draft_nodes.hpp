// The nodes of a draft, how many of them pay, and the order in which they are verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "search/shard_view.hpp"

namespace rest_store {

struct DraftNode {
  Token token;
  std::int32_t parent;  // -1: child of the context
  std::uint32_t depth;
  std::uint32_t origins;
  float score;        // probability that it is accepted
  float probability;  // given that its parent is
};

// Those of `nodes`, parents before children, whose score and those of all above are `min_score` or greater.
inline std::vector<DraftNode> with_scores_from(float min_score, std::vector<DraftNode> nodes) {
  std::vector<std::int32_t> place_of(nodes.size(), -1);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    DraftNode node = nodes[i];
    if (node.score < min_score) continue;
    if (node.parent >= 0) {
      node.parent = place_of[static_cast<std::size_t>(node.parent)];
      if (node.parent < 0) continue;
    }
    place_of[i] = static_cast<std::int32_t>(kept);
    nodes[kept++] = node;
  }
  nodes.resize(kept);
  return nodes;
}

// How many of `nodes`, in the order in which they were taken, make a step produce most tokens in its time; of equals
// the fewest. `costs[n]` is the time of a step that verifies n nodes.
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

// The order in which to verify nodes: the most probable path first, so that its KV cache entries are contiguous, then
// the others as they were taken. Parents stay before their children.
inline std::vector<std::int32_t> verification_order(std::span<const DraftNode> nodes) {
  std::vector<std::int32_t> order;
  std::vector<bool> on_path(nodes.size());
  std::int32_t last = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i)  // of a node's children, the most probable was taken first
    if (nodes[i].parent == last) {
      last = static_cast<std::int32_t>(i);
      order.push_back(last);
      on_path[i] = true;
    }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (!on_path[i]) order.push_back(static_cast<std::int32_t>(i));
  return order;
}

enum class Shape { kTree, kChain };

// What is drafted. `costs[n]` is the time of a step that verifies n nodes, and there are more of them than `max_nodes`;
// empty: all take the same. The draft ends before the first node with a lower score than `min_score`.
struct DraftLimits {
  std::size_t max_nodes;
  Shape shape = Shape::kTree;
  std::span<const double> costs;
  float min_score = 0;
};

}  // namespace rest_store
