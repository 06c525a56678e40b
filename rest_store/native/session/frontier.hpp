// What a tree may grow by next: a heap of open places, the best of which are taken one by one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace rest_store {

constexpr float kLikely = 0.45F;  // probabilities beyond are not waited for where they would change little

// The highest score first, of equals what was opened first.
struct Later {
  template <class Open>
  bool operator()(const Open& a, const Open& b) const {
    return a.score != b.score ? a.score < b.score : a.number > b.number;
  }
};

// `Open` has a `score` and a `number` of its own, ascending.
template <class Open>
class Frontier {
 public:
  void clear() {
    open_.clear();
    bar_ = 0;
  }
  bool empty() const { return open_.empty(); }
  std::size_t size() const { return open_.size(); }
  const Open& best() const { return open_.front(); }
  // A lesser score will not be taken any more.
  float bar() const { return bar_; }

  void push(const Open& open) {
    open_.push_back(open);
    std::push_heap(open_.begin(), open_.end(), Later());
  }

  Open pop() {
    std::pop_heap(open_.begin(), open_.end(), Later());
    const Open best = open_.back();
    open_.pop_back();
    return best;
  }

  // Whether, with `left` places still to be taken, a child of one of this score may be among them, as far as can be
  // told.
  bool may_contribute(float score, std::size_t left) {
    if (left == 0 || open_.size() < left) return left > 0;
    return score * kLikely > least_of_best(left);
  }

 private:
  // How many more than can be taken are kept before they are dropped.
  static constexpr std::size_t kSlack = 32;

  // The least score of the `count` best, of at least as many. Forgets, now and then, those that will not be taken.
  float least_of_best(std::size_t count) {
    if (open_.size() > 2 * count + kSlack) {
      const auto last = open_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
      std::nth_element(open_.begin(), last, open_.end(), [](const Open& a, const Open& b) { return Later()(b, a); });
      bar_ = last->score;
      open_.resize(count);
      std::make_heap(open_.begin(), open_.end(), Later());
      return bar_;
    }
    scores_.clear();
    for (const Open& one : open_) scores_.push_back(one.score);
    const auto last = scores_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(scores_.begin(), last, scores_.end(), std::greater<>());
    return *last;
  }

  std::vector<Open> open_;  // a heap
  std::vector<float> scores_;
  float bar_ = 0;
};

}  // namespace rest_store
