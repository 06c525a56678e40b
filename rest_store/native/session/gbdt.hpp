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

// Also compiled for wide registers, chosen at run time where the system supports that. Sums are the same, bit for bit.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#include <immintrin.h>
#define REST_STORE_WIDE __attribute__((target_clones("arch=x86-64-v3", "default")))
#define REST_STORE_AVX512 __attribute__((target("avx512f")))
#else
#define REST_STORE_WIDE
#endif

namespace rest_store {

constexpr std::size_t kGbdtDepth = 6;
constexpr std::size_t kLanes = 16;  // rows evaluated together

// Aligned, so that no register of leaves is read from two cache lines.
struct alignas(64) ObliviousTree {
  std::array<float, std::size_t{1} << kGbdtDepth> leaves{};
  std::array<float, kGbdtDepth> thresholds{};  // a greater feature sets the level's bit
  std::array<std::uint16_t, kGbdtDepth> features{};
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

  // Log odds of `kLanes` rows, or of twice as many if `is_wide`. `columns` holds feature f of row r at
  // [f * stride + r].
  void evaluate(const float* columns, std::size_t stride, bool is_wide, float* out) const {
#ifdef REST_STORE_AVX512
    static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
    if (has_avx512 && is_wide) return evaluate_in_registers<2>(columns, stride, out);
    if (has_avx512) return evaluate_in_registers<1>(columns, stride, out);
#endif
    evaluate_in_memory(columns, stride, out);
    if (is_wide) evaluate_in_memory(columns + kLanes, stride, out + kLanes);
  }

 private:
  REST_STORE_WIDE void evaluate_in_memory(const float* columns, std::size_t stride, float* out) const {
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

#ifdef REST_STORE_AVX512
  // The same with the leaves of a tree in four registers, from which all rows take theirs at once. What is read of a
  // tree serves all `groups` of rows.
  template <std::size_t groups>
  REST_STORE_AVX512 void evaluate_in_registers(const float* columns, std::size_t stride, float* out) const {
    static_assert(kLanes == 16 && kGbdtDepth == 6);
    __m512 sums[groups];
    for (__m512& sum : sums) sum = _mm512_set1_ps(base);
    for (const ObliviousTree& tree : trees) {
      __m512i leaf[groups];
      __mmask16 right[groups];  // rows whose bit of the level is set
      for (std::size_t level = 0; level < kGbdtDepth; ++level) {
        const float* column = columns + tree.features[level] * stride;
        const __m512 threshold = _mm512_set1_ps(tree.thresholds[level]);
        for (std::size_t i = 0; i < groups; ++i) {
          right[i] = _mm512_cmp_ps_mask(_mm512_loadu_ps(column + i * kLanes), threshold, _CMP_GT_OQ);
          if (level == 0) leaf[i] = _mm512_maskz_set1_epi32(right[i], 1);
          else if (level < 5) leaf[i] = _mm512_mask_or_epi32(leaf[i], right[i], leaf[i], _mm512_set1_epi32(1 << level));
        }
      }
      const __m512 first = _mm512_load_ps(&tree.leaves[0]), second = _mm512_load_ps(&tree.leaves[16]);
      const __m512 third = _mm512_load_ps(&tree.leaves[32]), fourth = _mm512_load_ps(&tree.leaves[48]);
      for (std::size_t i = 0; i < groups; ++i) {
        const __m512 low = _mm512_permutex2var_ps(first, leaf[i], second);
        const __m512 high = _mm512_permutex2var_ps(third, leaf[i], fourth);
        sums[i] = _mm512_add_ps(sums[i], _mm512_mask_blend_ps(right[i], low, high));
      }
    }
    for (std::size_t i = 0; i < groups; ++i) _mm512_storeu_ps(out + i * kLanes, sums[i]);
  }
#endif
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
