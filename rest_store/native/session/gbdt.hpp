// Gradient-boosted decision trees. All nodes of a level compare the same feature with the same threshold (oblivious
// trees, as in CatBoost, arXiv 1706.09516), so that a tree of depth d is d comparisons and one look-up.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

// Also compiled for wide registers, chosen at load time where the system supports that. Sums are the same, bit for bit.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define REST_STORE_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define REST_STORE_WIDE
#endif

namespace rest_store {

constexpr std::size_t kGbdtDepth = 6;
constexpr std::size_t kLanes = 16;  // rows evaluated together

struct ObliviousTree {
  std::array<std::uint16_t, kGbdtDepth> features{};
  std::array<float, kGbdtDepth> thresholds{};  // a greater feature sets the level's bit
  std::array<float, std::size_t{1} << kGbdtDepth> leaves{};
};

struct Gbdt {
  float base = 0;
  std::vector<ObliviousTree> trees;

  // Whether all numbers are finite, and any sum of leaves.
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

  // Log odds of `kLanes` rows; `columns` holds feature f of row r at [f * stride + r].
  REST_STORE_WIDE void evaluate(const float* columns, std::size_t stride, float* out) const {
    using Floats __attribute__((vector_size(4 * kLanes))) = float;
    using Places __attribute__((vector_size(4 * kLanes))) = std::int32_t;
    Floats sum = Floats{} + base;
    for (const ObliviousTree& tree : trees) {
      Places leaf{};
      for (std::size_t level = 0; level < kGbdtDepth; ++level) {
        Floats column;
        std::memcpy(&column, columns + tree.features[level] * stride, sizeof column);
        leaf |= (column > tree.thresholds[level]) & (1 << level);
      }
      Floats leaves;
      for (std::size_t row = 0; row < kLanes; ++row) leaves[row] = tree.leaves[static_cast<std::size_t>(leaf[row])];
      sum += leaves;
    }
    std::memcpy(out, &sum, sizeof sum);
  }
};

// Of steps with frozen stores alone, and of those in which a live one takes part; without trees for these, a live store
// ranks among the frozen ones.
struct FittedTrees {
  Gbdt frozen, live;

  const Gbdt& of(bool with_live) const { return with_live && !live.trees.empty() ? live : frozen; }
};

// What to subtract from log odds up to `greatest`, so that the sum of their exponentials does not overflow.
inline float softmax_shift(float greatest) { return std::max(0.0F, greatest - 80.0F); }

}  // namespace rest_store
