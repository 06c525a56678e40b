// Evidence from draft trees: what a source that is asked once a step, by tree, says at each place of a path. A service
// or a source written in Python is asked for the trees of several suffixes of the context at once.
#pragma once

#include "evidence.hpp"

namespace rest_store {

// Nodes of one tree with counts, parents before children, and the match that they follow.
struct GivenTree {
  std::uint32_t length = 0;  // of the match, in tokens
  std::uint64_t count = 0;   // its occurrences
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::uint64_t> counts;
};

class Grove {
 public:
  void clear() { trees_.clear(); }

  // Trees of shorter and shorter suffixes; one that matched no other suffix than the one before is left out.
  void add(GivenTree tree) {
    if (tree.length == 0 || trees_.size() == kRungs) return;
    for (const GivenTree& other : trees_)
      if (other.length == tree.length) return;
    trees_.push_back(std::move(tree));
  }

  // What the trees say after `path`.
  void at(std::span<const Token> path, Evidence& out) {
    out.clear();
    std::size_t found = 0;
    for (const GivenTree& tree : trees_) {
      std::int32_t node = -1;
      for (const Token token : path)
        if ((node = child(tree, node, token)) < 0) break;
      if (node < 0 && !path.empty()) continue;
      Rung& rung = out.rungs[place_of(tree.length + path.size(), found)];
      rung.length = tree.length + static_cast<std::uint32_t>(path.size());
      rung.count = node < 0 ? tree.count : tree.counts[static_cast<std::size_t>(node)];
      tally_.clear();
      for (std::size_t i = 0; i < tree.tokens.size(); ++i)
        if (tree.parents[i] == node) tally_.add(tree.tokens[i], static_cast<double>(tree.counts[i]));
      rung.next = tally_.ranked(static_cast<double>(std::max<std::uint64_t>(1, rung.count)));
    }
  }

 private:
  static std::int32_t child(const GivenTree& tree, std::int32_t node, Token token) {
    for (std::size_t i = 0; i < tree.tokens.size(); ++i)
      if (tree.parents[i] == node && tree.tokens[i] == token) return static_cast<std::int32_t>(i);
    return -1;
  }

  // Long matches take the first rungs that are free, short ones those of their length.
  static std::size_t place_of(std::size_t length, std::size_t& found) {
    return length <= kShort ? kRungs - length : std::min<std::size_t>(found++, kRungs - kShort - 1);
  }

  std::vector<GivenTree> trees_;
  Tally tally_;
};

}  // namespace rest_store
