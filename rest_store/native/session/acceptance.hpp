// Acceptance probabilities: the features of one node's candidates become the probability that each
// comes next. Gradient-boosted trees, fitted offline, give log odds, and a few weights that are
// learnt online are added to them.
#pragma once

#include "session/candidates.hpp"
#include "session/match_experience.hpp"

namespace rest_store {

// Weights by kind of source. After each step they move a little towards the tokens that were
// accepted. They are bounded, and drawn back to zero, so that no text spoils a calibration for
// good. Not thread-safe.
class OnlineCalibration {
 public:
  // A bias, then the weights of prompt lookup, of recycled logits, of datastores, and of several
  // sources at once.
  static constexpr std::size_t kWeights = 5;
  using Weights = std::array<float, kWeights>;

  const Weights& weights() const { return weights_; }
  void set_weights(const Weights& weights) {
    for (std::size_t i = 0; i < kWeights; ++i)
      weights_[i] = std::clamp(weights[i], -kBound, kBound);
  }

  // The sum to add to the log odds of a candidate with these origins (CandidatePool::origins).
  float log_odds(std::uint32_t origins) const {
    float sum = 0;
    for (std::size_t i = 0; i < kWeights; ++i)
      if (concerns(origins, i)) sum += weights_[i];
    return sum;
  }

  // Learn from a candidate with these origins. `probability`: that it comes next. `right`: whether
  // it did.
  void learn(std::uint32_t origins, float probability, bool right) {
    const float step = kRate * (static_cast<float>(right) - probability);
    for (std::size_t i = 0; i < kWeights; ++i)
      if (concerns(origins, i)) weights_[i] += step;
  }

  // Shrink all weights a little.
  void decay() {
    for (float& weight : weights_) weight = std::clamp(kDecay * weight, -kBound, kBound);
  }

  // Add the change of one step, from `before` to `after`. So concurrent sessions do not undo each
  // other's changes. A change that is not finite is left out.
  void add(const OnlineCalibration& before, const OnlineCalibration& after) {
    Weights sums = weights_;
    for (std::size_t i = 0; i < kWeights; ++i) sums[i] += after.weights_[i] - before.weights_[i];
    if (std::all_of(sums.begin(), sums.end(), [](float sum) { return std::isfinite(sum); }))
      set_weights(sums);
    matches.add(before.matches, after.matches);
  }

  MatchExperience matches;  // with all texts

 private:
  static constexpr float kRate = 0.01F, kDecay = 0.9998F, kBound = 1.0F;

  // Whether a weight belongs to candidates with these origins.
  static bool concerns(std::uint32_t origins, std::size_t weight) {
    if (weight == 0) return true;
    if (weight < 3) return (origins >> (weight - 1) & 1) != 0;
    if (weight == 3) return origins >> 2 != 0;
    return (origins & (origins - 1)) != 0;
  }

  Weights weights_{};
};

// The acceptance probability of each row of `candidates`: a softmax over their log odds and those
// of "none of these", which are zero. Without trees, the priors, divided by their sum if it
// exceeds 1.
inline std::array<float, kCandidates> acceptance_probabilities(const CandidateTable& candidates,
                                                               const IntegerTrees& trees,
                                                               const OnlineCalibration& online,
                                                               IntegerTrees::Scratch& scratch) {
  std::array<float, kCandidates> out{};
  float sum = 0;
  if (!trees.empty()) {
    trees.evaluate(candidates.columns(), candidates.size() > kLanes, out.data(), scratch);
    float greatest = 0;
    for (std::size_t row = 0; row < candidates.size(); ++row)
      greatest = std::max(greatest, out[row] += online.log_odds(candidates.origins(row)));
    const float shift = softmax_shift(greatest);
    sum = std::exp(-shift);
    for (std::size_t row = 0; row < candidates.size(); ++row)
      sum += out[row] = std::exp(out[row] - shift);
  } else {
    for (std::size_t row = 0; row < candidates.size(); ++row)
      sum += out[row] = candidates.prior(row);
    sum = std::max(sum, 1.0F);
  }
  for (std::size_t row = 0; row < candidates.size(); ++row) out[row] /= sum;
  return out;
}

}  // namespace rest_store
