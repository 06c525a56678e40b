// Evidence from draft trees, for sources without evidence of their own: a session requests the trees of several
// suffixes of the context in one call, and each tree with counts answers for one backoff level.
#pragma once

#include "session/evidence.hpp"

namespace rest_store {

// The tree of one context, nodes with parents before children, and the match that it follows.
struct SourceTree {
  std::vector<Token> path;   // from the root of the draft to the place that the tree was requested for
  std::uint32_t length = 0;  // of the match, in tokens
  std::uint64_t count = 0;   // occurrences of the match
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::uint64_t> counts;
};

class TreeEvidence {
 public:
  void clear() { trees_.clear(); }

  // For each path, add trees of shorter and shorter suffixes.
  void add(SourceTree tree) {
    if (tree.length > 0) trees_.push_back(std::move(tree));
  }

  // What the trees say after `path`.
  void after(std::span<const Token> path, Evidence& out) {
    out.clear();
    matches_.clear();
    for (const SourceTree& tree : trees_) {
      if (tree.path.size() > path.size() || !std::equal(tree.path.begin(), tree.path.end(), path.begin())) continue;
      const std::span<const Token> rest = path.subspan(tree.path.size());
      std::int32_t node = -1;
      for (const Token token : rest)
        if ((node = child(tree, node, token)) < 0) break;
      if (node < 0 && !rest.empty()) continue;
      matches_.push_back({tree.length + rest.size(), &tree, node});
    }
    std::stable_sort(matches_.begin(), matches_.end(),
                     [](const auto& a, const auto& b) { return a.length > b.length; });
    std::size_t longer = 0, last = 0;
    for (const auto& [length, tree, node] : matches_) {
      if (length == last) continue;  // the same suffix, requested for another path
      last = length;
      if (length > kShort && longer == kLongLevels) continue;
      BackoffLevel& level = out.levels[length > kShort ? longer++ : kLevels - length];
      level.length = static_cast<std::uint32_t>(length);
      level.count = node < 0 ? tree->count : tree->counts[static_cast<std::size_t>(node)];
      weights_.clear();
      for (std::size_t i = 0; i < tree->tokens.size(); ++i)
        if (tree->parents[i] == node) weights_.add(tree->tokens[i], static_cast<double>(tree->counts[i]));
      weights_.heaviest(static_cast<double>(std::max<std::uint64_t>(1, level.count)), level.next);
    }
  }

 private:
  static std::int32_t child(const SourceTree& tree, std::int32_t node, Token token) {
    for (std::size_t i = 0; i < tree.tokens.size(); ++i)
      if (tree.parents[i] == node && tree.tokens[i] == token) return static_cast<std::int32_t>(i);
    return -1;
  }

  // A tree that has the path, and the node where the path ends.
  struct TreeMatch {
    std::size_t length;  // of the suffix that its children follow
    const SourceTree* tree;
    std::int32_t node;
  };

  std::vector<TreeMatch> matches_;
  std::vector<SourceTree> trees_;
  TokenWeights weights_;
};

}  // namespace rest_store
