// Answers to heavy matches, kept: the few matches with many occurrences come up again and again, and their trees cost the
// most. A fixed number of slots, one answer each; a new answer takes the place of the old one. A shard never changes, so
// an answer is never stale.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "draft.hpp"

namespace rest_store {

class Memo {
 public:
  using Tree = std::vector<DraftNode>;

  static constexpr std::uint64_t kHeavy = 512;  // occurrences from which on an answer is worth keeping
  static constexpr std::size_t kSlots = 4096;

  std::shared_ptr<const Tree> find(const Match& match, std::uint32_t max_nodes, std::uint32_t max_depth) {
    const std::size_t slot = slot_of(match, max_nodes, max_depth);
    const std::lock_guard lock(locks_[slot % kLocks]);
    const Answer& answer = answers_[slot];
    const bool same = answer.tree && answer.max_nodes == max_nodes && answer.max_depth == max_depth &&
                      answer.length == match.length && std::equal(answer.intervals.begin(), answer.intervals.end(), match.intervals.begin(),
                      [](const Interval& a, const Interval& b) { return a.begin == b.begin && a.end == b.end; });
    return same ? answer.tree : nullptr;
  }

  void keep(const Match& match, std::uint32_t max_nodes, std::uint32_t max_depth, const Tree& tree) {
    Answer answer{max_nodes, max_depth, match.length, match.intervals, std::make_shared<const Tree>(tree)};
    const std::size_t slot = slot_of(match, max_nodes, max_depth);
    const std::lock_guard lock(locks_[slot % kLocks]);
    std::swap(answers_[slot], answer);
  }

 private:
  static constexpr std::size_t kLocks = 64;

  struct Answer {
    std::uint32_t max_nodes = 0, max_depth = 0, length = 0;
    std::vector<Interval> intervals;
    std::shared_ptr<const Tree> tree;
  };

  static std::size_t slot_of(const Match& match, std::uint32_t max_nodes, std::uint32_t max_depth) {
    std::uint64_t hash = std::uint64_t{max_nodes} << 32 | max_depth << 16 | match.length;
    for (const Interval& interval : match.intervals)
      hash = (hash ^ interval.begin ^ interval.end << 32) * 0x9E3779B97F4A7C15ULL ^ hash >> 29;
    return (hash ^ hash >> 32) % kSlots;
  }

  std::array<std::mutex, kLocks> locks_;
  std::vector<Answer> answers_ = std::vector<Answer>(kSlots);
};

}  // namespace rest_store
