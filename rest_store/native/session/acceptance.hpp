// From what all sources say of one context to the probability of each proposal.
#pragma once

#include "session/candidates.hpp"
#include "session/online_calibration.hpp"

namespace rest_store {

// The probability that each of `candidates` comes next: by the trees of `gbdt`, corrected, with the probability of any
// other token left over; without trees, by the fixed rule.
inline std::array<float, kCandidates> acceptance_probabilities(const CandidateTable& candidates, const Gbdt* gbdt,
                                                               const OnlineCalibration& online) {
  std::array<float, kCandidates> probabilities{};
  float sum = 0;
  if (gbdt != nullptr && !gbdt->trees.empty()) {
    for (std::size_t row = 0; row < candidates.size(); row += kLanes)
      gbdt->evaluate(candidates.columns() + row, kCandidates, probabilities.data() + row);
    float most = 0;
    for (std::size_t row = 0; row < candidates.size(); ++row)
      most = std::max(most, probabilities[row] += online.of(candidates.origins(row)));
    const float shift = softmax_shift(most);
    sum = std::exp(-shift);
    for (std::size_t row = 0; row < candidates.size(); ++row)
      sum += probabilities[row] = std::exp(probabilities[row] - shift);
  } else {
    for (std::size_t row = 0; row < candidates.size(); ++row) sum += probabilities[row] = candidates.prior(row);
    sum = std::max(sum, 1.0F);
  }
  for (std::size_t row = 0; row < candidates.size(); ++row) probabilities[row] /= sum;
  return probabilities;
}

}  // namespace rest_store
