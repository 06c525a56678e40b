// From what all sources say of one context to the chance of each proposal.
#pragma once

#include "session/online_calibration.hpp"
#include "session/proposals.hpp"

namespace rest_store {

// The chance that each of `proposals` comes next: by the trees of `forest`, corrected, with the chance of any other
// token left over; without trees, by the fixed rule.
inline std::array<float, kProposals> chances_of(const Proposals& proposals, const Forest* forest,
                                                const Correction& correction) {
  std::array<float, kProposals> chances{};
  float sum = 0;
  if (forest != nullptr && !forest->trees.empty()) {
    for (std::size_t row = 0; row < proposals.size(); row += kLanes)
      forest->evaluate(proposals.columns() + row, kProposals, chances.data() + row);
    float most = 0;
    for (std::size_t row = 0; row < proposals.size(); ++row)
      most = std::max(most, chances[row] += correction.of(proposals.origins(row)));
    const float shift = softmax_shift(most);
    sum = std::exp(-shift);
    for (std::size_t row = 0; row < proposals.size(); ++row) sum += chances[row] = std::exp(chances[row] - shift);
  } else {
    for (std::size_t row = 0; row < proposals.size(); ++row) sum += chances[row] = proposals.prior(row);
    sum = std::max(sum, 1.0F);
  }
  for (std::size_t row = 0; row < proposals.size(); ++row) chances[row] /= sum;
  return chances;
}

}  // namespace rest_store
