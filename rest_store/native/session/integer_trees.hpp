// Gradient-boosted decision trees as they are evaluated: 16 or 32 rows at once, in integers.
//
// The trees of a model compare a feature with few thresholds, again and again. So each comparison,
// a split, is made once for all rows, and a tree reads the results of its six. Leaves are 16-bit
// multiples of one quantum: all rows take theirs from a few registers, and their sum is the same,
// bit for bit, with any instructions and in any order.
#pragma once

#include <cstring>
#include <limits>

#include "session/gbdt.hpp"

// Wide registers are used where the system has them at run time. AVX-512 makes a draft 8% faster
// than AVX2.
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define REST_STORE_AVX2 __attribute__((target("avx2")))
#define REST_STORE_AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512vl")))
#endif

namespace rest_store {

constexpr std::size_t kLanes = 16;  // rows evaluated together, or twice as many

// Columns of features: feature f of row r at [f * kColumn + r].
constexpr std::size_t kColumn = 2 * kLanes;

enum class Instructions { kPortable, kAvx2, kAvx512 };

// Whether this machine has these instructions.
inline bool has(Instructions instructions) {
#ifdef REST_STORE_AVX2
  if (instructions == Instructions::kAvx2) return __builtin_cpu_supports("avx2") != 0;
  if (instructions == Instructions::kAvx512)
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512vl") != 0;
#endif
  return instructions == Instructions::kPortable;
}

inline Instructions best_instructions() {
  static const Instructions best = has(Instructions::kAvx512) ? Instructions::kAvx512
                                   : has(Instructions::kAvx2) ? Instructions::kAvx2
                                                              : Instructions::kPortable;
  return best;
}

// Immutable, thread-safe.
class IntegerTrees {
 public:
  IntegerTrees() = default;
  explicit IntegerTrees(const Gbdt& gbdt) : base_(gbdt.base) {
    number_splits(gbdt);
    round_leaves(gbdt);
  }

  bool empty() const { return leaves_.empty(); }

  // A byte for each row of a split: all bits, or none.
  struct alignas(64) Bytes {
    std::array<std::uint8_t, 64> values;
  };
  using Scratch = std::vector<Bytes>;  // keeps its memory

  // Write the log odds of the first kLanes rows of `columns`, or of twice as many if `is_wide`, to
  // `out`. Each thread has its own scratch. `instructions`: the machine has them.
  void evaluate(const float* columns, bool is_wide, float* out, Scratch& scratch,
                Instructions instructions = best_instructions()) const {
    alignas(64) std::int32_t sums[2 * kLanes];
    if (is_wide) add_up<2>(columns, sums, scratch, instructions);
    else add_up<1>(columns, sums, scratch, instructions);
    // Not rounded before the end, so that all machines agree.
    for (std::size_t row = 0; row < kLanes * (1 + is_wide); ++row)
      out[row] = static_cast<float>(static_cast<double>(base_) +
                                    quantum_ * static_cast<double>(sums[row]));
  }

 private:
  static constexpr std::int32_t kGreatest = std::numeric_limits<std::int16_t>::max();
  static constexpr std::size_t kSet = 16;  // leaves whose bytes fill a register
  static constexpr std::size_t kSets = (std::size_t{1} << kGbdtDepth) / kSet;

  // The thresholds of one feature: from those of the column before on, up to `end`.
  struct Column {
    std::size_t feature, end;
  };

  // The splits of a tree: the number of each, times kLanes.
  using Splits = std::array<std::uint32_t, kGbdtDepth>;
  // The leaves of a tree: as words, and in sets of low and of high bytes.
  struct alignas(64) Leaves {
    std::array<std::int16_t, std::size_t{1} << kGbdtDepth> words;
    std::array<std::array<std::array<std::uint8_t, kSet>, 2>, kSets> bytes;
  };

  // Number the splits of all trees, feature by feature.
  void number_splits(const Gbdt& gbdt) {
    std::vector<std::vector<float>> by_feature;
    for (const ObliviousTree& tree : gbdt.trees)
      for (std::size_t level = 0; level < kGbdtDepth; ++level) {
        if (tree.features[level] >= by_feature.size())
          by_feature.resize(tree.features[level] + std::size_t{1});
        by_feature[tree.features[level]].push_back(tree.thresholds[level]);
      }
    std::vector<std::size_t> first;  // of each feature
    for (std::size_t feature = 0; feature < by_feature.size(); ++feature) {
      std::vector<float>& thresholds = by_feature[feature];
      std::sort(thresholds.begin(), thresholds.end());
      thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
      first.push_back(thresholds_.size());
      thresholds_.insert(thresholds_.end(), thresholds.begin(), thresholds.end());
      if (!thresholds.empty()) columns_.push_back({feature, thresholds_.size()});
    }
    for (const ObliviousTree& tree : gbdt.trees) {
      Splits& splits = splits_.emplace_back();
      for (std::size_t level = 0; level < kGbdtDepth; ++level) {
        const std::vector<float>& thresholds = by_feature[tree.features[level]];
        const auto threshold =
            std::lower_bound(thresholds.begin(), thresholds.end(), tree.thresholds[level]);
        const std::size_t number =
            first[tree.features[level]] + static_cast<std::size_t>(threshold - thresholds.begin());
        splits[level] = static_cast<std::uint32_t>(kLanes * number);
      }
    }
  }

  // The quantum is the least power of two that keeps the greatest leaf within 16 bits, and any sum
  // within 32.
  void round_leaves(const Gbdt& gbdt) {
    const std::size_t count = gbdt.trees.size();
    float greatest = 0;
    for (const ObliviousTree& tree : gbdt.trees)
      for (const float leaf : tree.leaves) greatest = std::max(greatest, std::abs(leaf));
    const double most = std::min<double>(kGreatest, std::numeric_limits<std::int32_t>::max() /
                                                        std::max(1.0, static_cast<double>(count)));
    if (greatest > 0)
      quantum_ = std::exp2(std::ceil(std::log2(static_cast<double>(greatest) / most)));
    std::int32_t bound = 0;  // of the sums of the last block
    for (std::size_t tree = 0; tree < count; ++tree) {
      Leaves& leaves = leaves_.emplace_back();
      std::int32_t reach = 0;
      for (std::size_t i = 0; i < gbdt.trees[tree].leaves.size(); ++i) {
        const double leaf = static_cast<double>(gbdt.trees[tree].leaves[i]) / quantum_;
        const auto rounded = static_cast<std::int32_t>(leaf + std::copysign(0.5, leaf));
        leaves.words[i] = static_cast<std::int16_t>(rounded);
        leaves.bytes[i / kSet][0][i % kSet] = static_cast<std::uint8_t>(rounded);
        leaves.bytes[i / kSet][1][i % kSet] = static_cast<std::uint8_t>(rounded >> 8);
        reach = std::max(reach, std::abs(rounded));
      }
      if (blocks_.empty() || bound + reach > kGreatest) {
        blocks_.push_back(0);
        bound = 0;
      }
      bound += reach;
      blocks_.back() = tree + 1;
    }
  }

  // The sums of the leaves of `groups` times kLanes rows.
  template <std::size_t groups>
  void add_up(const float* columns, std::int32_t* sums, Scratch& scratch,
              [[maybe_unused]] Instructions instructions) const {
    scratch.resize(
        std::max(scratch.size(), thresholds_.size() * groups * kLanes / sizeof(Bytes) + 1));
    std::uint8_t* const greater = scratch[0].values.data();
#ifdef REST_STORE_AVX2
    if (instructions == Instructions::kAvx512) {
      return add_up_avx512<groups>(columns, greater, sums);
    }
    if (instructions == Instructions::kAvx2) {
      return add_up_avx2<groups>(columns, greater, sums);
    }
#endif
    add_up_portable<groups>(columns, greater, sums);
  }

  // Compare each column with its thresholds. By hand for each kind of registers: compilers make it
  // half as fast.
  template <std::size_t groups>
  void split_portable(const float* columns, std::uint8_t* greater) const {
    std::size_t split = 0;
    for (const Column& column : columns_) {
      std::array<float, groups * kLanes> values;
      std::memcpy(values.data(), columns + column.feature * kColumn, sizeof values);
      for (; split < column.end; ++split, greater += groups * kLanes) {
        std::array<std::uint8_t, groups * kLanes> rows;
        for (std::size_t row = 0; row < rows.size(); ++row)
          rows[row] = values[row] > thresholds_[split] ? 0xFF : 0;
        std::memcpy(greater, rows.data(), sizeof rows);
      }
    }
  }

  template <std::size_t groups>
  void add_up_portable(const float* columns, std::uint8_t* greater, std::int32_t* sums) const {
    split_portable<groups>(columns, greater);
    std::array<std::int32_t, groups * kLanes> out{};
    for (std::size_t tree = 0; tree < leaves_.size(); ++tree)
      for (std::size_t row = 0; row < groups * kLanes; row += 8) {
        std::uint64_t leaves = 0;  // a byte for each of eight rows: the number of its leaf
        for (std::size_t level = 0; level < kGbdtDepth; ++level) {
          std::uint64_t rows;
          std::memcpy(&rows, greater + groups * splits_[tree][level] + row, sizeof rows);
          leaves |= rows & (0x0101010101010101ULL << level);
        }
        for (std::size_t i = 0; i < 8; ++i)
          out[row + i] += leaves_[tree].words[leaves >> (8 * i) & 0xFF];
      }
    std::copy(out.begin(), out.end(), sums);
  }

#ifdef REST_STORE_AVX2
  static_assert(kLanes == 16 && kGbdtDepth == 6);

  template <std::size_t groups>
  REST_STORE_AVX512 void split_avx512(const float* columns, std::uint8_t* greater) const {
    std::size_t split = 0;
    for (const Column& column : columns_) {
      __m512 values[groups];
      for (std::size_t i = 0; i < groups; ++i)
        values[i] = _mm512_loadu_ps(columns + column.feature * kColumn + i * kLanes);
      for (; split < column.end; ++split)
        for (std::size_t i = 0; i < groups; ++i, greater += kLanes) {
          const __mmask16 mask =
              _mm512_cmp_ps_mask(values[i], _mm512_set1_ps(thresholds_[split]), _CMP_GT_OQ);
          _mm_store_si128(reinterpret_cast<__m128i*>(greater), _mm_movm_epi8(mask));
        }
    }
  }

  // The bytes of a split for `groups` times kLanes rows, in the lower bytes of the register.
  template <std::size_t groups>
  REST_STORE_AVX512 static __m256i load_avx512(const std::uint8_t* at) {
    if constexpr (groups == 2) return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
    else return _mm256_zextsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
  }

  // The bits of six splits are the number of a row's leaf, which is taken from two registers. The
  // sums of a block fit into 16 bits.
  template <std::size_t groups>
  REST_STORE_AVX512 void add_up_avx512(const float* columns, std::uint8_t* greater,
                                       std::int32_t* sums) const {
    split_avx512<groups>(columns, greater);
    __m512i out[groups];
    for (__m512i& sum : out) sum = _mm512_setzero_si512();
    std::size_t tree = 0;
    for (const std::size_t end : blocks_) {
      __m512i block = _mm512_setzero_si512();
      for (; tree < end; ++tree) {
        // Bits above the sixth are not read.
        __m256i leaf = load_avx512<groups>(greater + groups * splits_[tree][0]);
        for (std::size_t level = 1; level < kGbdtDepth; ++level) {
          const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << level));
          const __m256i rows = load_avx512<groups>(greater + groups * splits_[tree][level]);
          leaf = _mm256_ternarylogic_epi32(leaf, rows, bit, 0xD8);  // bit ? rows : leaf
        }
        const std::int16_t* words = leaves_[tree].words.data();
        const __m512i first = _mm512_load_si512(words), second = _mm512_load_si512(words + 32);
        block = _mm512_add_epi16(
            block, _mm512_permutex2var_epi16(first, _mm512_cvtepu8_epi16(leaf), second));
      }
      alignas(64) std::int16_t row_values[2 * kLanes];
      _mm512_store_si512(row_values, block);
      for (std::size_t i = 0; i < groups; ++i) {
        const auto* from = reinterpret_cast<const __m256i*>(row_values + i * kLanes);
        out[i] =
            _mm512_add_epi32(out[i], _mm512_maskz_cvtepi16_epi32(0xFFFF, _mm256_load_si256(from)));
      }
    }
    for (std::size_t i = 0; i < groups; ++i) _mm512_store_si512(sums + i * kLanes, out[i]);
  }

  template <std::size_t groups>
  REST_STORE_AVX2 void split_avx2(const float* columns, std::uint8_t* greater) const {
    std::size_t split = 0;
    for (const Column& column : columns_)
      for (; split < column.end; ++split)
        for (std::size_t i = 0; i < groups; ++i, greater += kLanes) {
          const float* values = columns + column.feature * kColumn + i * kLanes;
          const __m256 threshold = _mm256_set1_ps(thresholds_[split]);
          const __m256 first = _mm256_cmp_ps(_mm256_loadu_ps(values), threshold, _CMP_GT_OQ);
          const __m256 second = _mm256_cmp_ps(_mm256_loadu_ps(values + 8), threshold, _CMP_GT_OQ);
          const __m256i words = _mm256_permute4x64_epi64(
              _mm256_packs_epi32(_mm256_castps_si256(first), _mm256_castps_si256(second)),
              _MM_SHUFFLE(3, 1, 2, 0));
          _mm_store_si128(
              reinterpret_cast<__m128i*>(greater),
              _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
        }
  }

  // 16 bytes of a split, twice.
  REST_STORE_AVX2 static __m256i load_twice(const std::uint8_t* at) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
  }

  // Registers hold the low and the high bytes of 16 leaves: four splits choose one of 16 leaves,
  // the other two one of four such sets. The sums of a block fit into 16 bits.
  template <std::size_t groups>
  REST_STORE_AVX2 void add_up_avx2(const float* columns, std::uint8_t* greater,
                                   std::int32_t* sums) const {
    split_avx2<groups>(columns, greater);
    std::fill_n(sums, groups * kLanes, 0);
    std::size_t tree = 0;
    for (const std::size_t end : blocks_) {
      __m128i block[2 * groups];  // sums of 8 rows each
      for (__m128i& sum : block) sum = _mm_setzero_si128();
      for (; tree < end; ++tree)
        for (std::size_t i = 0; i < groups; ++i) {
          const std::uint8_t* rows = greater + i * kLanes;
          __m256i leaf = _mm256_setzero_si256();
          for (std::size_t level = 0; level < 4; ++level) {
            const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << level));
            leaf = _mm256_or_si256(
                leaf, _mm256_and_si256(load_twice(rows + groups * splits_[tree][level]), bit));
          }
          __m256i bytes[kSets];
          for (std::size_t set = 0; set < kSets; ++set) {
            const auto* from = reinterpret_cast<const __m256i*>(&leaves_[tree].bytes[set]);
            bytes[set] = _mm256_shuffle_epi8(_mm256_load_si256(from), leaf);
          }
          const __m256i fifth = load_twice(rows + groups * splits_[tree][4]);
          const __m256i sixth = load_twice(rows + groups * splits_[tree][5]);
          const __m256i both =
              _mm256_blendv_epi8(_mm256_blendv_epi8(bytes[0], bytes[1], fifth),
                                 _mm256_blendv_epi8(bytes[2], bytes[3], fifth), sixth);
          const __m128i low = _mm256_castsi256_si128(both),
                        high = _mm256_extracti128_si256(both, 1);
          block[2 * i] = _mm_add_epi16(block[2 * i], _mm_unpacklo_epi8(low, high));
          block[2 * i + 1] = _mm_add_epi16(block[2 * i + 1], _mm_unpackhi_epi8(low, high));
        }
      for (std::size_t i = 0; i < 2 * groups; ++i) {
        auto* to = reinterpret_cast<__m256i*>(sums + 8 * i);
        _mm256_store_si256(
            to, _mm256_add_epi32(_mm256_load_si256(to), _mm256_cvtepi16_epi32(block[i])));
      }
    }
  }
#endif

  float base_ = 0;
  double quantum_ = 1;  // of leaves
  std::vector<float> thresholds_;
  std::vector<Column> columns_;
  std::vector<Splits> splits_;       // of each tree
  std::vector<Leaves> leaves_;       // of each tree
  std::vector<std::size_t> blocks_;  // the ends of blocks of trees, whose sums fit into 16 bits
};

// The trees of three kinds of steps. `frozen`: with recycled logits and no live store. `live`: with
// recycled logits and a live store. `text`: without recycled logits, with any stores; where the
// best source is absent, the others mean more. Trees other than `frozen` may be absent. A step then
// falls back from `text` to that of `live` and `frozen` which fits its stores, and from `live` to
// `frozen`, for which a live store is one more frozen one.
struct FittedTrees {
  IntegerTrees frozen, live, text;

  const IntegerTrees& for_step(bool has_live, bool has_logits) const {
    if (!has_logits && !text.empty()) return text;
    return has_live && !live.empty() ? live : frozen;
  }
};

}  // namespace rest_store
