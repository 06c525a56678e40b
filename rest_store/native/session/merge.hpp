// Merges the scored trees of several sessions into one draft.
//
// Nodes of the same path become one node. Its score is the mean over all trees, in which a tree
// without the path counts as 0. So it is as in each tree: no node has a greater score than its
// parent, and the scores of siblings do not exceed their parent's in sum.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "session/draft_nodes.hpp"

namespace rest_store {

// Columns of equal length, parents before children. Owns nothing.
struct ScoredTree {
  std::span<const Token> tokens;
  std::span<const std::int32_t> parents;  // -1: child of the context
  std::span<const float> scores;
  std::span<const std::uint8_t> origins;
};

// Immutable once it is constructed.
class MergedTree {
 public:
  // Merge `trees`, of which there is at least one, into a draft of the shape and size of `options`.
  // Throws std::invalid_argument if a tree has a parent after its child, or a score that is not
  // between 0 and the parent's.
  MergedTree(std::span<const ScoredTree> trees, const DraftOptions& options) {
    paths_.push_back({0, 0, 0, 0, static_cast<double>(trees.size()), 0, 0});
    for (const ScoredTree& tree : trees) add(tree);
    for (Path& path : paths_) path.score /= static_cast<double>(trees.size());
    take(options);
  }

  // In the order of verification; of a lookahead, in the order of paths (draft_nodes.hpp).
  const std::vector<DraftNode>& nodes() const { return nodes_; }

  // For each node of the `tree`-th tree, its index in the merged one; -1: it was cut.
  std::vector<std::int32_t> nodes_of(std::size_t tree) const {
    std::vector<std::int32_t> out;
    for (const std::size_t path : paths_of_[tree]) out.push_back(node_of_[path]);
    return out;
  }

 private:
  // A path of any of the trees; the first one is empty.
  struct Path {
    Token token;         // its last one
    std::size_t parent;  // the path without that token
    std::uint32_t depth;
    std::uint32_t origins;
    double score;  // the sum over the trees, then the mean
    // A list of the paths that are longer by one token; 0: none.
    std::size_t first_child, next_sibling;
  };

  // Add the paths of a tree, and its scores.
  void add(const ScoredTree& tree) {
    std::vector<std::size_t>& added = paths_of_.emplace_back();
    for (std::size_t i = 0; i < tree.tokens.size(); ++i) {
      const std::int32_t parent = tree.parents[i];
      if (parent < -1 || parent >= static_cast<std::int32_t>(i))
        throw std::invalid_argument("a parent after its child");
      const auto above = static_cast<std::size_t>(parent);
      if (!(tree.scores[i] >= 0 && tree.scores[i] <= (parent < 0 ? 1 : tree.scores[above])))
        throw std::invalid_argument("a score that is not between 0 and the parent's");
      added.push_back(longer(parent < 0 ? 0 : added[above], tree.tokens[i]));
      paths_[added[i]].score += static_cast<double>(tree.scores[i]);
      paths_[added[i]].origins |= tree.origins[i];
    }
  }

  // The path `parent` with one more token, which is added if it is new.
  std::size_t longer(std::size_t parent, Token token) {
    std::size_t at = paths_[parent].first_child;
    while (at != 0 && paths_[at].token != token) at = paths_[at].next_sibling;
    if (at != 0) return at;
    const std::size_t next = std::exchange(paths_[parent].first_child, paths_.size());
    paths_.push_back({token, parent, paths_[parent].depth + 1, 0, 0, 0, next});
    return paths_.size() - 1;
  }

  // Take the paths with the greatest scores as nodes; of a chain, the likeliest next one again and
  // again.
  void take(const DraftOptions& options) {
    std::vector<std::size_t> order(paths_.size() - 1);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i + 1;
    // Stable, so that parents stay before children with the same score.
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return paths_[a].score > paths_[b].score;
    });
    node_of_.assign(paths_.size(), -1);
    std::size_t last = 0;  // the end of the chain
    for (const std::size_t at : order) {
      const Path& path = paths_[at];
      const auto score = static_cast<float>(path.score);
      if (nodes_.size() == options.max_nodes) break;
      if (options.shape == Shape::kChain && path.parent != last) continue;
      last = at;
      node_of_[at] = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back({path.token, node_of_[path.parent], path.depth, path.origins, score, 0});
    }
    if (!options.costs.empty()) nodes_.resize(pruned_size(nodes_, options.costs));
    const std::vector<std::int32_t> moved_to = options.shape == Shape::kLookahead
                                                   ? put_in_path_order(nodes_)
                                                   : put_in_verification_order(nodes_);
    for (std::int32_t& node : node_of_) {
      if (node >= static_cast<std::int32_t>(nodes_.size())) node = -1;
      if (node >= 0) node = moved_to[static_cast<std::size_t>(node)];
    }
  }

  std::vector<Path> paths_;
  std::vector<std::vector<std::size_t>> paths_of_;  // of each node of each tree
  std::vector<std::int32_t> node_of_;               // of each path
  std::vector<DraftNode> nodes_;
};

}  // namespace rest_store
