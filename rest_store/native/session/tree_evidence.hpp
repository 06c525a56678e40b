// Evidence from draft trees: what a source that is asked once a step, by tree, says at each place of a path. A service
// or a source written in Python is asked for the trees of several suffixes of the context at once.
#pragma once

#include "session/evidence.hpp"

namespace rest_store {

// Nodes of one tree with counts, parents before children, and the match that they follow.
struct SourceTree {
  std::vector<Token> before;  // the path from the root of the draft to the place where this tree was asked for
  std::uint32_t length = 0;   // of the match, in tokens
  std::uint64_t count = 0;    // its occurrences
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::uint64_t> counts;
};

class TreeEvidence {
 public:
  void clear() { trees_.clear(); }

  // Of each place, trees of shorter and shorter suffixes.
  void add(SourceTree tree) {
    if (tree.length > 0) trees_.push_back(std::move(tree));
  }

  // What the trees say after `path`.
  void at(std::span<const Token> path, Evidence& out) {
    out.clear();
    matches_.clear();
    for (const SourceTree& tree : trees_) {
      if (tree.before.size() > path.size() || !std::equal(tree.before.begin(), tree.before.end(), path.begin()))
        continue;
      const std::span<const Token> rest = path.subspan(tree.before.size());
      std::int32_t node = -1;
      for (const Token token : rest)
        if ((node = child(tree, node, token)) < 0) break;
      if (node < 0 && !rest.empty()) continue;
      matches_.push_back({tree.length + rest.size(), &tree, node});
    }
    std::stable_sort(matches_.begin(), matches_.end(),
                     [](const TreeMatch& a, const TreeMatch& b) { return a.length > b.length; });
    std::size_t found = 0, last = 0;
    for (const TreeMatch& match : matches_) {
      if (match.length == last) continue;  // the same suffix, asked for at another place
      last = match.length;
      const std::size_t place = match.length <= kShort ? kLevels - match.length : found++;
      if (place >= kLevels - kShort && match.length > kShort) continue;
      const SourceTree& tree = *match.tree;
      BackoffLevel& level = out.levels[place];
      level.length = static_cast<std::uint32_t>(match.length);
      level.count = match.node < 0 ? tree.count : tree.counts[static_cast<std::size_t>(match.node)];
      weights_.clear();
      for (std::size_t i = 0; i < tree.tokens.size(); ++i)
        if (tree.parents[i] == match.node) weights_.add(tree.tokens[i], static_cast<double>(tree.counts[i]));
      weights_.ranked(static_cast<double>(std::max<std::uint64_t>(1, level.count)), level.next);
    }
  }

 private:
  static std::int32_t child(const SourceTree& tree, std::int32_t node, Token token) {
    for (std::size_t i = 0; i < tree.tokens.size(); ++i)
      if (tree.parents[i] == node && tree.tokens[i] == token) return static_cast<std::int32_t>(i);
    return -1;
  }

  // A tree that knows the path, and the node where it ends.
  struct TreeMatch {
    std::size_t length;  // of the suffix that it is about
    const SourceTree* tree;
    std::int32_t node;
  };

  std::vector<TreeMatch> matches_;
  std::vector<SourceTree> trees_;
  TokenWeights weights_;
};

}  // namespace rest_store
