// The search for a chain: the path through a draft tree with the greatest expected accepted length for its cost.
#pragma once

#include <optional>
#include <span>

#include "session/frontier.hpp"

namespace rest_store {

// The end of a path whose continuations are not known yet.
struct ChainEnd {
  double score;          // what the best chain through it may bring; orders the frontier
  std::uint32_t number;  // ascending
  std::int32_t parent;   // node; -1: the context
  std::size_t row;       // of the candidate that it is
  double length;         // expected accepted length of the path
};

// Looks past the end of the path that may lead to the best chain, until no other may lead to a better one. How far a
// path leads is estimated: each further token is taken to be accepted with a fixed probability, a high one, so that a
// certain continuation of the second candidate is found. Descending to the best candidate of each place would miss it.
class ChainSearch {
 public:
  // `costs[n]` is the time of a step that verifies n nodes; empty: all take the same.
  void begin(std::size_t max_nodes, std::span<const double> costs) {
    max_nodes_ = max_nodes;
    costs_ = costs;
    frontier_.clear();
    lengths_.clear();
    pushed_ = 0;
    best_.reset();
    best_rate_ = rate(0, 0);
  }

  // Consider a path of `depth` nodes to a candidate below node `parent`, accepted as a whole with probability `score`.
  void add(std::int32_t parent, std::size_t row, std::size_t depth, float score) {
    if (depth > max_nodes_) return;
    const double length = static_cast<double>(score) + (parent < 0 ? 0 : lengths_[static_cast<std::size_t>(parent)]);
    ChainEnd end{0, pushed_++, parent, row, length};
    if (const double value = rate(length, depth); value > best_rate_) {
      best_rate_ = value;
      best_ = end;
    }
    double further = 0, probability = static_cast<double>(score);
    for (std::size_t nodes = depth + 1; nodes <= max_nodes_; ++nodes) {
      further += probability *= kOptimism;
      end.score = std::max(end.score, rate(length + further, nodes));
    }
    if (end.score > worth()) frontier_.push(end);
  }

  // The end to look past next, which becomes the next node; none: the search is over.
  std::optional<ChainEnd> next(std::size_t expansions) {
    if (frontier_.empty() || 2 * expansions >= 3 * max_nodes_ + 2) return std::nullopt;
    const ChainEnd end = frontier_.pop();
    if (end.score <= worth()) return std::nullopt;
    lengths_.push_back(end.length);
    return end;
  }

  // The end of the best chain; none: a step without draft tokens is better.
  const std::optional<ChainEnd>& best() const { return best_; }

 private:
  static constexpr double kOptimism = 0.85, kLeastGain = 0.002;

  // Chains that bring less are not looked for.
  double worth() const { return best_rate_ * (1 + kLeastGain); }

  // Tokens generated in the time of a step.
  double rate(double length, std::size_t nodes) const { return (1 + length) / (costs_.empty() ? 1 : costs_[nodes]); }

  std::size_t max_nodes_ = 0;
  std::span<const double> costs_;
  Frontier<ChainEnd> frontier_;
  std::vector<double> lengths_;  // of the path to each node
  std::uint32_t pushed_ = 0;
  std::optional<ChainEnd> best_;
  double best_rate_ = 0;
};

}  // namespace rest_store
