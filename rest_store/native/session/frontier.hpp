// The frontier of a best-first search: a heap of candidates that a tree may take next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rest_store {

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

// Not thread-safe.
class Frontier {
 public:
  void clear() {
    candidates_.clear();
    cutoff_ = 0;
  }
  bool empty() const { return candidates_.empty(); }
  // No candidate with a lower score will be taken any more.
  float cutoff() const { return cutoff_; }

  void push(const OpenCandidate& candidate) {
    candidates_.push_back(candidate);
    std::push_heap(candidates_.begin(), candidates_.end(), LowerPriority());
  }

  // Remove and return the best candidate; the frontier is not empty.
  OpenCandidate pop() {
    std::pop_heap(candidates_.begin(), candidates_.end(), LowerPriority());
    const OpenCandidate best = candidates_.back();
    candidates_.pop_back();
    return best;
  }

  // Whether a likely child of a node with this score would be among the `left` nodes still to be
  // taken. If not, the cutoff rises to that child's score. Counting the better candidates is faster
  // than selecting the last of the best `left`.
  bool may_contribute(float score, std::size_t left) {
    if (left == 0 || candidates_.size() < left) return left > 0;
    drop_beyond(left);
    const float child = score * kChildProbability;
    std::size_t better = 0;
    for (const OpenCandidate& candidate : candidates_) better += candidate.score >= child;
    if (better < left) return true;
    cutoff_ = std::max(cutoff_, child);
    return false;
  }

 private:
  // The heap may hold this many candidates, and twice those that can be taken, before it is cut.
  static constexpr std::size_t kSlack = 32;

  // Now and then, drop the candidates that will not be taken: all but the `count` best.
  void drop_beyond(std::size_t count) {
    if (candidates_.size() <= 2 * count + kSlack) return;
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(
        candidates_.begin(), last, candidates_.end(),
        [](const OpenCandidate& a, const OpenCandidate& b) { return LowerPriority()(b, a); });
    cutoff_ = candidates_[count - 1].score;
    candidates_.resize(count);
    std::make_heap(candidates_.begin(), candidates_.end(), LowerPriority());
  }

  std::vector<OpenCandidate> candidates_;  // a heap
  float cutoff_ = 0;
};

}  // namespace rest_store
