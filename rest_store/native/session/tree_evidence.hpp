// Evidence from draft trees: what a source that is asked once a step, by tree, says at each place of a path. A service
// or a source written in Python is asked for the trees of several suffixes of the context at once.
#pragma once

#include "session/evidence.hpp"

namespace rest_store {

// Nodes of one tree with counts, parents before children, and the match that they follow.
struct GivenTree {
  std::vector<Token> before;  // the path from the root of the draft to the place where this tree was asked for
  std::uint32_t length = 0;   // of the match, in tokens
  std::uint64_t count = 0;    // its occurrences
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::uint64_t> counts;
};

class Grove {
 public:
  void clear() { trees_.clear(); }

  // Of each place, trees of shorter and shorter suffixes.
  void add(GivenTree tree) {
    if (tree.length > 0) trees_.push_back(std::move(tree));
  }

  // What the trees say after `path`.
  void at(std::span<const Token> path, Evidence& out) {
    out.clear();
    said_.clear();
    for (const GivenTree& tree : trees_) {
      if (tree.before.size() > path.size() || !std::equal(tree.before.begin(), tree.before.end(), path.begin()))
        continue;
      const std::span<const Token> rest = path.subspan(tree.before.size());
      std::int32_t node = -1;
      for (const Token token : rest)
        if ((node = child(tree, node, token)) < 0) break;
      if (node < 0 && !rest.empty()) continue;
      said_.push_back({tree.length + rest.size(), &tree, node});
    }
    std::stable_sort(said_.begin(), said_.end(), [](const Said& a, const Said& b) { return a.length > b.length; });
    std::size_t found = 0, last = 0;
    for (const Said& said : said_) {
      if (said.length == last) continue;  // the same suffix, asked for at another place
      last = said.length;
      const std::size_t place = said.length <= kShort ? kRungs - said.length : found++;
      if (place >= kRungs - kShort && said.length > kShort) continue;
      const GivenTree& tree = *said.tree;
      Rung& rung = out.rungs[place];
      rung.length = static_cast<std::uint32_t>(said.length);
      rung.count = said.node < 0 ? tree.count : tree.counts[static_cast<std::size_t>(said.node)];
      tally_.clear();
      for (std::size_t i = 0; i < tree.tokens.size(); ++i)
        if (tree.parents[i] == said.node) tally_.add(tree.tokens[i], static_cast<double>(tree.counts[i]));
      tally_.ranked(static_cast<double>(std::max<std::uint64_t>(1, rung.count)), rung.next);
    }
  }

 private:
  static std::int32_t child(const GivenTree& tree, std::int32_t node, Token token) {
    for (std::size_t i = 0; i < tree.tokens.size(); ++i)
      if (tree.parents[i] == node && tree.tokens[i] == token) return static_cast<std::int32_t>(i);
    return -1;
  }

  // A tree that knows the path, and the node where it ends.
  struct Said {
    std::size_t length;  // of the suffix that it is about
    const GivenTree* tree;
    std::int32_t node;
  };

  std::vector<Said> said_;
  std::vector<GivenTree> trees_;
  Tally tally_;
};

}  // namespace rest_store
