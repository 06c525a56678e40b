// How many nodes of a grown tree to verify, and in which order.
#pragma once

#include "session/tree_builder.hpp"

namespace rest_store {

// The number of nodes, of those in the order in which they were taken, that makes a step produce most tokens in its
// time; `costs[n]` is the time of a step that verifies n nodes. A node more must be worth its time: of equals the
// fewest.
inline std::size_t pruned_size(std::span<const DraftNode> nodes, std::span<const double> costs) {
  double tokens = 1, best = 0;
  std::size_t kept = 0;
  for (std::size_t count = 0; count < costs.size() && count <= nodes.size(); ++count) {
    if (count > 0) tokens += static_cast<double>(nodes[count - 1].score);
    const double rate = tokens / costs[count];
    if (rate > best) {
      best = rate;
      kept = count;
    }
  }
  return kept;
}

// The places of `nodes` in the order in which to verify them: the likeliest path first, contiguous, so that accepting
// it moves nothing; then the others as they were taken. Parents stay before their children.
inline std::vector<std::int32_t> verification_order(std::span<const DraftNode> nodes) {
  std::vector<std::int32_t> order;
  std::vector<bool> on_path(nodes.size());
  std::int32_t last = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i)  // of the children of one node, the likeliest was taken first
    if (nodes[i].parent == last) {
      last = static_cast<std::int32_t>(i);
      order.push_back(last);
      on_path[i] = true;
    }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (!on_path[i]) order.push_back(static_cast<std::int32_t>(i));
  return order;
}

}  // namespace rest_store
