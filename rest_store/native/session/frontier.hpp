// The frontier of a best-first search: a heap of candidates that a tree may take next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rest_store {

// From this score on, all candidates of a node are scored, not the first few alone.
constexpr float kProbable = 0.3F;
// The probability assumed of a child that is not known yet, when deciding whether to look for it.
constexpr float kChildProbability = 0.45F;

// A candidate that a tree may take next.
struct OpenCandidate {
  float score;
  std::uint32_t number;  // in the order of pushing
  std::size_t candidate;
  std::int32_t parent;  // the node that it follows
};

// Heap order: the highest score on top, of equals the one that was pushed first.
struct LowerPriority {
  bool operator()(const OpenCandidate& a, const OpenCandidate& b) const {
    return a.score != b.score ? a.score < b.score : a.number > b.number;
  }
};

class Frontier {
 public:
  void clear() {
    nodes_.clear();
    cutoff_ = 0;
  }
  bool empty() const { return nodes_.empty(); }
  // Nodes of a lower score will not be taken any more.
  float cutoff() const { return cutoff_; }

  void push(const OpenCandidate& node) {
    nodes_.push_back(node);
    std::push_heap(nodes_.begin(), nodes_.end(), LowerPriority());
  }

  OpenCandidate pop() {
    std::pop_heap(nodes_.begin(), nodes_.end(), LowerPriority());
    const OpenCandidate best = nodes_.back();
    nodes_.pop_back();
    return best;
  }

  // Whether a likely child of a node with this score would be among the `left` nodes still to be
  // taken. Counting the better nodes is faster than selecting the last of the best `left`.
  bool may_contribute(float score, std::size_t left) {
    if (left == 0 || nodes_.size() < left) return left > 0;
    drop_beyond(left);
    const float child = score * kChildProbability;
    std::size_t better = 0;
    for (const OpenCandidate& node : nodes_) better += node.score >= child;
    if (better < left) return true;
    cutoff_ = std::max(cutoff_, child);
    return false;
  }

 private:
  static constexpr std::size_t kSlack =
      32;  // nodes kept beyond those that can be taken, before they are dropped

  // Now and then, drop the nodes that will not be taken: all but the `count` best.
  void drop_beyond(std::size_t count) {
    if (nodes_.size() <= 2 * count + kSlack) return;
    std::nth_element(
        nodes_.begin(), nodes_.begin() + static_cast<std::ptrdiff_t>(count) - 1, nodes_.end(),
        [](const OpenCandidate& a, const OpenCandidate& b) { return LowerPriority()(b, a); });
    cutoff_ = nodes_[count - 1].score;
    nodes_.resize(count);
    std::make_heap(nodes_.begin(), nodes_.end(), LowerPriority());
  }

  std::vector<OpenCandidate> nodes_;  // a heap
  float cutoff_ = 0;
};

}  // namespace rest_store
