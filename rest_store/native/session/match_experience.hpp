// Experience with long matches: how often the token that continued one came next, beside how often
// the fitted trees promised that.
//
// The trees were fitted to texts in which seven or eight of ten long matches go on. Where a text is
// written a second time, all of them do; where a template was filled in anew, few do. A few tokens
// of a text show which it is. So the odds of a token that continues a long match are multiplied by
// the odds of the outcomes over the odds that the trees promised.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace rest_store {

enum class MatchKind : std::size_t { kLookup, kFrozen, kLive };  // of the source that it is in
constexpr std::size_t kMatchKinds = 3;

// A match is long from the first of these lengths on. There is a class for each kind and length.
constexpr std::array<std::uint32_t, 2> kLongMatches{16, 32};
constexpr std::size_t kMatchClasses = kMatchKinds * kLongMatches.size();
constexpr std::size_t kNoClass = kMatchClasses;

// The class of a match of `length` tokens; kNoClass: it is not long.
inline std::size_t class_of_match(MatchKind kind, std::uint32_t length) {
  std::size_t reached = 0;
  while (reached < kLongMatches.size() && length >= kLongMatches[reached]) ++reached;
  if (reached == 0) return kNoClass;
  return static_cast<std::size_t>(kind) * kLongMatches.size() + reached - 1;
}

// Not thread-safe.
class MatchExperience {
 public:
  // Learn from a token that continued a match of this class. `probability`: by the trees, that it
  // comes next. `right`: whether it did.
  void learn(std::size_t match_class, float probability, bool right) {
    Counts& counts = counts_[match_class];
    counts.tried += 1;
    counts.promised += probability;
    counts.right += static_cast<float>(right);
  }

  // Add the experience of one step, which has turned `before` into `after`. Old experience is
  // halved now and then.
  void add(const MatchExperience& before, const MatchExperience& after) {
    for (std::size_t i = 0; i < kMatchClasses; ++i) {
      Counts& counts = counts_[i];
      counts.add(after.counts_[i], 1);
      counts.add(before.counts_[i], -1);
      if (counts.tried > kMaxTried)
        counts = {counts.tried / 2, counts.promised / 2, counts.right / 2};
    }
  }

  // The factor for the odds, by class: from the experience with one text, and from this one with
  // all texts, which counts for at most kSharedWeight tokens.
  std::array<float, kMatchClasses> odds_ratios(const MatchExperience& text) const {
    std::array<float, kMatchClasses> out;
    for (std::size_t i = 0; i < kMatchClasses; ++i) {
      Counts counts = text.counts_[i];
      if (const float tried = counts_[i].tried; tried > 0)
        counts.add(counts_[i], std::min(tried, kSharedWeight) / tried);
      out[i] = counts.odds(counts.right) / counts.odds(counts.promised);
    }
    return out;
  }

 private:
  static constexpr float kMaxTried = 2000;     // tokens
  static constexpr float kSharedWeight = 100;  // tokens
  static constexpr float kAssumed = 1;         // right and wrong tokens assumed before any

  struct Counts {
    float tried = 0;     // tokens that continued a match
    float promised = 0;  // the sum of their probabilities
    float right = 0;     // those that came next

    void add(const Counts& other, float weight) {
      tried += weight * other.tried;
      promised += weight * other.promised;
      right += weight * other.right;
    }

    // Rounding may leave a little less than nothing on either side.
    float odds(float part) const {
      return (std::max(part, 0.0F) + kAssumed) / (std::max(tried - part, 0.0F) + kAssumed);
    }
  };

  std::array<Counts, kMatchClasses> counts_{};
};

}  // namespace rest_store
