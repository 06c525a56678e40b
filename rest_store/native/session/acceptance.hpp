// Acceptance probabilities: what turns the features of one node's candidates into the probability that each comes next.
// Gradient-boosted trees fitted offline give log odds; a few weights learnt online are added to them.
#pragma once

#include "session/candidates.hpp"

namespace rest_store {

// Weights by kind of source, moved a little after each step towards what was accepted. Bounded, and pulled back to
// zero, so that no text spoils a calibration for good.
struct OnlineCalibration {
  static constexpr std::size_t kOrigins = 4;  // prompt lookup, recycled logits, datastores, several sources at once

  float bias = 0;
  std::array<float, kOrigins> weights{};

  // What to add to the log odds of a candidate with these origins.
  float log_odds(std::uint32_t origins) const {
    float sum = bias;
    for (std::size_t i = 0; i < kOrigins; ++i)
      if (has(origins, i)) sum += weights[i];
    return sum;
  }

  // A candidate with these origins had `probability`, and came next or did not.
  void learn(std::uint32_t origins, float probability, bool right) {
    const float step = kRate * (static_cast<float>(right) - probability);
    bias += step;
    for (std::size_t i = 0; i < kOrigins; ++i)
      if (has(origins, i)) weights[i] += step;
  }

  // Shrink all weights a little.
  void decay() {
    bias *= kDecay;
    for (float& weight : weights) weight *= kDecay;
    clamp();
  }

  void clamp() {
    bias = std::clamp(bias, -kBound, kBound);
    for (float& weight : weights) weight = std::clamp(weight, -kBound, kBound);
  }

 private:
  static constexpr float kRate = 0.01F, kDecay = 0.9998F, kBound = 1.0F;

  static bool has(std::uint32_t origins, std::size_t kind) {
    if (kind < 2) return (origins >> kind & 1) != 0;
    if (kind == 2) return origins >> 2 != 0;
    return (origins & (origins - 1)) != 0;
  }
};

// The acceptance probability of each of `candidates`: a softmax over their log odds and those of "none of these", which
// are zero. Without trees, the fixed rule's prior.
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
    for (std::size_t row = 0; row < candidates.size(); ++row) sum += out[row] = std::exp(out[row] - shift);
  } else {
    for (std::size_t row = 0; row < candidates.size(); ++row) sum += out[row] = candidates.prior(row);
    sum = std::max(sum, 1.0F);
  }
  for (std::size_t row = 0; row < candidates.size(); ++row) out[row] /= sum;
  return out;
}

}  // namespace rest_store
