// Fits gradient-boosted trees to labelled rows: second-order boosting on binned features. The rows
// of a group are the candidates for one position, of which at most one is right. The loss is that
// of a softmax over them and "none of these".
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "session/gbdt.hpp"

namespace rest_store {

inline constexpr double kRidge = 20;  // L2 regularisation of leaves

struct GbdtOptions {
  std::uint32_t trees;
  double rate;
  double row_share;  // of the groups, sampled anew for each tree
};

// Reads the rows when it is constructed; the labels and the ends outlive it. Not thread-safe.
class GbdtFitter {
 public:
  // `rows`: float[count, features], row by row, finite. `labels`: of each row, 0 or 1. `ends`: the
  // row behind each group, ascending; the last is `count`.
  GbdtFitter(std::span<const float> rows, std::span<const std::uint8_t> labels,
             std::span<const std::uint32_t> ends, std::size_t features)
      : labels_(labels),
        ends_(ends),
        features_(features),
        count_(labels.size()),
        bins_(count_ * features) {
    for (std::size_t feature = 0; feature < features; ++feature) {
      edges_.push_back(quantiles(rows, feature));
      const std::vector<float>& edges = edges_.back();
      for (std::size_t row = 0; row < count_; ++row)
        bins_[row * features + feature] = static_cast<std::uint8_t>(
            std::lower_bound(edges.begin(), edges.end(), rows[row * features + feature]) -
            edges.begin());
    }
  }

  // Fit trees. The same arguments give the same trees.
  Gbdt fit(const GbdtOptions& options) {
    Gbdt gbdt;
    gbdt.base = -3;
    odds_.assign(count_, gbdt.base);
    gradients_.resize(count_);
    leaves_.resize(count_);
    std::mt19937_64 random(1);
    const auto keep = static_cast<std::uint64_t>(options.row_share * 65536);
    for (std::uint32_t number = 0; number < options.trees; ++number) {
      sampled_.clear();
      std::uint32_t row = 0;
      for (const std::uint32_t end : ends_) {
        float greatest = 0;
        for (std::uint32_t i = row; i < end; ++i) greatest = std::max(greatest, odds_[i]);
        const float shift = softmax_shift(greatest);
        float sum = std::exp(-shift);
        for (std::uint32_t i = row; i < end; ++i) sum += std::exp(odds_[i] - shift);
        const bool sampled = (random() & 65535) < keep;
        for (; row < end; ++row) {
          const float probability = std::exp(odds_[row] - shift) / sum;
          gradients_[row] = {static_cast<float>(labels_[row]) - probability,
                             std::max(probability * (1 - probability), 1e-6F)};
          if (sampled) sampled_.push_back(row);
        }
      }
      gbdt.trees.push_back(fit_tree(options));
      const ObliviousTree& tree = gbdt.trees.back();
      for (std::size_t i = 0; i < count_; ++i) odds_[i] += tree.leaves[leaf_of(i)];
    }
    return gbdt;
  }

 private:
  static constexpr std::size_t kBins = 64;

  struct Sums {
    float gradient = 0, hessian = 0;
  };

  // At most kBins - 1 values that divide the feature's rows into bins of about equal size.
  std::vector<float> quantiles(std::span<const float> rows, std::size_t feature) const {
    std::vector<float> sample;
    const std::size_t step = std::max<std::size_t>(1, count_ / 200'000);
    for (std::size_t row = 0; row < count_; row += step)
      sample.push_back(rows[row * features_ + feature]);
    std::sort(sample.begin(), sample.end());
    std::vector<float> distinct = sample;
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<float> edges;
    if (distinct.size() <= kBins) {
      for (std::size_t i = 0; i + 1 < distinct.size(); ++i)
        edges.push_back((distinct[i] + distinct[i + 1]) / 2);
      return edges;
    }
    for (std::size_t i = 1; i < kBins; ++i) {
      const float value = sample[i * sample.size() / kBins];
      if (edges.empty() || value > edges.back()) edges.push_back(value);
    }
    return edges;
  }

  ObliviousTree fit_tree(const GbdtOptions& options) {
    ObliviousTree tree;
    splits_.clear();
    for (const std::uint32_t row : sampled_) leaves_[row] = 0;
    for (std::size_t level = 0; level < kGbdtDepth; ++level) {
      sum_gradients(std::size_t{1} << level);
      const auto [feature, bin] = best_split(std::size_t{1} << level);
      splits_.push_back({feature, bin});
      tree.features[level] = static_cast<std::uint16_t>(feature);
      tree.thresholds[level] = edges_[feature].empty() ? 3e38F : edges_[feature][bin];
      split_rows(level, feature, bin);
    }
    std::array<double, std::size_t{1} << kGbdtDepth> gradient{}, hessian{};
    for (const std::uint32_t row : sampled_) {
      gradient[leaves_[row]] += gradients_[row].gradient;
      hessian[leaves_[row]] += gradients_[row].hessian;
    }
    for (std::size_t leaf = 0; leaf < tree.leaves.size(); ++leaf)
      tree.leaves[leaf] =
          static_cast<float>(options.rate * gradient[leaf] / (hessian[leaf] + kRidge));
    return tree;
  }

  // Split every leaf at `bin` of `feature`.
  void split_rows(std::size_t level, std::size_t feature, std::size_t bin) {
    for (const std::uint32_t row : sampled_)
      leaves_[row] |= static_cast<std::uint8_t>((bins_[row * features_ + feature] > bin) << level);
  }

  // Sum up the sampled rows of each of `width` leaves, by feature and bin.
  void sum_gradients(std::size_t width) {
    sums_.assign(width * features_ * kBins, {});
    for (const std::uint32_t row : sampled_) {
      const std::uint8_t* bins = bins_.data() + row * features_;
      Sums* sums = sums_.data() + leaves_[row] * features_ * kBins;
      const Sums add = gradients_[row];
      for (std::size_t feature = 0; feature < features_; ++feature) {
        Sums& sum = sums[feature * kBins + bins[feature]];
        sum.gradient += add.gradient;
        sum.hessian += add.hessian;
      }
    }
  }

  std::pair<std::size_t, std::size_t> best_split(std::size_t width) const {
    double best = -1;
    std::pair<std::size_t, std::size_t> split{0, 0};
    std::array<double, kBins> gains;
    for (std::size_t feature = 0; feature < features_; ++feature) {
      gains.fill(0);
      for (std::size_t leaf = 0; leaf < width; ++leaf) {
        const Sums* sums = sums_.data() + (leaf * features_ + feature) * kBins;
        double gradient = 0, hessian = 0, left_gradient = 0, left_hessian = 0;
        for (std::size_t bin = 0; bin < kBins; ++bin) {
          gradient += sums[bin].gradient;
          hessian += sums[bin].hessian;
        }
        for (std::size_t bin = 0; bin + 1 < kBins; ++bin) {
          left_gradient += sums[bin].gradient;
          left_hessian += sums[bin].hessian;
          const double right = gradient - left_gradient;
          gains[bin] += left_gradient * left_gradient / (left_hessian + kRidge) +
                        right * right / (std::max(0.0, hessian - left_hessian) + kRidge);
        }
      }
      for (std::size_t bin = 0; bin < edges_[feature].size(); ++bin)
        if (gains[bin] > best) {
          best = gains[bin];
          split = {feature, bin};
        }
    }
    return split;
  }

  std::size_t leaf_of(std::size_t row) const {
    std::size_t leaf = 0;
    for (std::size_t level = 0; level < splits_.size(); ++level)
      leaf |= static_cast<std::size_t>(bins_[row * features_ + splits_[level].first] >
                                       splits_[level].second)
              << level;
    return leaf;
  }

  std::span<const std::uint8_t> labels_;
  std::span<const std::uint32_t> ends_;
  std::size_t features_, count_;
  std::vector<std::uint8_t> bins_;
  std::vector<std::vector<float>> edges_;
  std::vector<float> odds_;
  std::vector<Sums> gradients_, sums_;
  std::vector<std::uint8_t> leaves_;
  std::vector<std::uint32_t> sampled_;
  std::vector<std::pair<std::size_t, std::size_t>> splits_;
};

}  // namespace rest_store
