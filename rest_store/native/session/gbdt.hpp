// Gradient-boosted decision trees. All nodes of a level compare the same feature with the same
// threshold (oblivious trees, as in CatBoost, arXiv 1706.09516), so that a tree of depth d is d
// comparisons and one look-up.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rest_store {

constexpr std::size_t kGbdtDepth = 6;

// A tree, in files as in memory.
struct ObliviousTree {
  std::array<std::uint16_t, kGbdtDepth> features{};
  std::array<float, kGbdtDepth> thresholds{};  // a greater feature sets the level's bit
  std::array<float, std::size_t{1} << kGbdtDepth> leaves{};
};
static_assert(sizeof(ObliviousTree) ==
              2 * kGbdtDepth + 4 * kGbdtDepth + (std::size_t{4} << kGbdtDepth));

// Trees as they are fitted and stored in files. IntegerTrees evaluates them.
struct Gbdt {
  float base = 0;
  std::vector<ObliviousTree> trees;

  // Whether all numbers are finite, and every sum of leaves, too.
  bool finite() const {
    double bound = std::abs(static_cast<double>(base));
    for (const ObliviousTree& tree : trees) {
      double most = 0;
      for (const float threshold : tree.thresholds)
        if (!std::isfinite(threshold)) return false;
      for (const float leaf : tree.leaves) {
        if (!std::isfinite(leaf)) return false;
        most = std::max(most, std::abs(static_cast<double>(leaf)));
      }
      bound += most;
    }
    return bound < 1e30;
  }
};

// The number to subtract from log odds, of which the greatest is `greatest`. Then the sum of their
// exponentials does not overflow.
inline float softmax_shift(float greatest) { return std::max(0.0F, greatest - 80.0F); }

}  // namespace rest_store
