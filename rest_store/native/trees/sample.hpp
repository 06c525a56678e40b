// A sample of the continuations of a match: rows at regular ranks of every shard, merged in lexicographic order.
//
// A sample is refined only between neighbours whose rows differ: between equal rows all rows are equal, because a
// suffix array is sorted. A continuation that no row shows has fewer occurrences than the strides of all shards
// together. For a given sum of strides, the fewest rows are read if the stride of a shard grows with the square root of
// its occurrences.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <vector>

#include "search/match.hpp"
#include "trees/rows.hpp"

namespace rest_store {

class Sample {
 public:
  // The sample of one shard, in rank order. Its k-th rank belongs to row `first + k`.
  struct Part {
    const ShardView* shard = nullptr;
    Interval interval;
    std::uint64_t stride = 1;
    double root = 0;  // of the interval's width
    std::size_t first = 0;
    std::vector<Rank> ranks;

    // Consecutive occurrences that no row may show, at most.
    std::uint64_t slack() const { return std::min(stride - 1, interval.width()); }

    // The ranks at which a boundary just before sample k may lie: (rank of k-1, rank of k].
    Interval gap_before(std::size_t k) const {
      return {k == 0 ? interval.begin : ranks[k - 1] + 1, k == ranks.size() ? interval.end : ranks[k]};
    }
  };

  // Start with about `wanted` rows of `shape` from the continuations of `match`, if one of `shards` has all; else more.
  void start(const std::vector<ShardView>& shards, const Match& match, const RowShape& shape, std::uint64_t wanted) {
    const std::vector<Interval>& intervals = match.intervals;
    skip_ = match.length;
    shape_ = shape;
    double roots = 0, greatest = 0;
    std::size_t used = 0;
    parts_.resize(shards.size());
    for (std::size_t s = 0; s < shards.size(); ++s)
      if (intervals[s].width() > 0) {
        Part& part = parts_[used++];
        part.shard = &shards[s];
        part.interval = intervals[s];
        part.ranks.clear();
        part.root = std::sqrt(static_cast<double>(part.interval.width()));
        roots += part.root;
        greatest = std::max(greatest, part.root);
      }
    parts_.resize(used);
    lengths_.clear();
    // As many rows of one shard leave as little unseen; so a sample of several shards seldom needs refinement.
    const double factor = 2 * static_cast<double>(match.count) / (static_cast<double>(wanted) * (roots + greatest));
    set_strides([&](const Part& part) { return part.root * factor; });
    all_ = unseen_ == 0;
    fill([&](const Part& part, auto&& add) { add_between(part, part.interval.begin, part.interval.end, add); });
  }

  // Add rows until `unseen() + most_unseen()` is at most `doubt`.
  void refine(std::uint64_t doubt) {
    all_ = false;  // no rows are added between equal ones
    double roots = 0, greatest = 0;
    for (const Part& part : parts_) {
      roots += part.root;
      greatest = std::max(greatest, part.root);
    }
    const double factor =
        static_cast<double>(doubt + (doubt > parts_.size() ? parts_.size() + 1 : 0)) / (roots + greatest);
    set_strides([&](const Part& part) { return std::min(part.root * factor, static_cast<double>(part.stride)); });
    fill([&](const Part& part, auto&& add) {
      for (std::size_t k = 0; k <= part.ranks.size(); ++k) {
        const bool inner = k > 0 && k < part.ranks.size();
        const Interval gap = part.gap_before(k);
        if (!inner || !same_row(part.first + k - 1, part.first + k)) add_between(part, gap.begin, gap.end, add);
        if (k < part.ranks.size()) add(part.ranks[k], static_cast<std::ptrdiff_t>(part.first + k));
      }
    });
  }

  bool holds_excess() const {
    constexpr std::size_t kKept = std::size_t{4} << 20;  // bytes of rows; a draft of 1,024 nodes takes less
    return bytes_.capacity() > kKept || new_bytes_.capacity() > kKept;
  }

  // The ranks of a part at which a boundary between merged rows i - 1 and i may lie.
  Interval gap_before(std::size_t part, std::size_t i) const {
    return parts_[part].gap_before(parts_.size() == 1 ? i : before_[i * parts_.size() + part]);
  }

  // Occurrences of a continuation that no row shows, at most; 0 if rows show all.
  std::uint64_t unseen() const { return unseen_; }
  // The same within one shard.
  std::uint64_t most_unseen() const { return most_unseen_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::uint32_t width() const { return shape_.width; }
  std::size_t size() const { return order_.size(); }  // rows, in merged order:

  const std::uint8_t* row(std::size_t i) const { return bytes_.data() + order_[i] * shape_.bytes; }
  std::uint32_t length(std::size_t i) const { return lengths_[order_[i]]; }  // tokens before a separator

  // Occurrences that rows i .. j-1 stand for: each for itself and for those between it and its predecessor in its
  // shard.
  std::uint64_t weight(std::size_t i, std::size_t j) const { return weights_[j] - weights_[i]; }

  // Tokens that rows i and i + 1 have in common at their start.
  std::uint32_t common_prefix(std::size_t i) const {
    return shape_.common_prefix(row(i), row(i + 1), std::min(length(i), length(i + 1)));
  }

  Token token(std::size_t i, std::uint32_t depth) const { return shape_.token(row(i), depth); }

 private:
  // A row and its first eight bytes.
  struct Head {
    std::uint64_t key;
    std::uint32_t row;
  };

  bool same_row(std::size_t a, std::size_t b) const {
    return std::memcmp(bytes_.data() + a * shape_.bytes, bytes_.data() + b * shape_.bytes, shape_.bytes) == 0;
  }

  // Every stride-th rank of [begin, end): no run of `stride` ranks is missed.
  template <class Add>
  void add_between(const Part& part, Rank begin, Rank end, Add&& add) const {
    for (Rank rank = begin + part.stride - 1; rank < end; rank += part.stride) add(rank, std::ptrdiff_t{-1});
  }

  template <class Stride>
  void set_strides(Stride&& stride) {
    unseen_ = most_unseen_ = 0;
    for (Part& part : parts_) {
      part.stride = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(stride(part)));
      unseen_ += part.slack();
      most_unseen_ = std::max(most_unseen_, part.slack());
    }
  }

  // Rebuild the sample: `visit(part, add)` lists the ranks of each part, with the row that is known already, or -1.
  template <class Visit>
  void fill(Visit&& visit) {
    new_bytes_.clear();
    new_lengths_.clear();
    known_.clear();
    for (Part& part : parts_) {
      new_ranks_.clear();
      visit(part, [&](Rank rank, std::ptrdiff_t known) {
        new_ranks_.push_back(rank);
        known_.push_back(known);
      });
      const std::size_t first = known_.size() - new_ranks_.size();
      new_bytes_.resize(known_.size() * shape_.bytes + 8);
      new_lengths_.resize(known_.size());
      gather(part, first);
      part.ranks.swap(new_ranks_);
      part.first = first;  // `visit` reads only its own part, so later parts may still refer to the old rows
    }
    bytes_.swap(new_bytes_);
    lengths_.swap(new_lengths_);
    merge();
  }

  // Read the rows at new_ranks_ into rows first, first + 1, ...: entries, then symbols, in blocks, each prefetched well
  // before it is used.
  void gather(const Part& part, std::size_t first) {
    constexpr std::size_t kBlock = 32;
    const ShardView& shard = *part.shard;
    const std::size_t count = new_ranks_.size();
    const std::uint8_t* at[2][kBlock];
    const auto prefetch_entries = [&](std::size_t begin) {
      for (std::size_t i = begin; i < std::min(begin + kBlock, count); ++i)
        if (known_[first + i] < 0) prefetch(shard.entry_address(new_ranks_[i]));
    };
    const auto resolve = [&](std::size_t begin) {
      for (std::size_t i = begin; i < std::min(begin + kBlock, count); ++i)
        if (known_[first + i] < 0) {
          const std::uint8_t* row = shard.suffix(shard.position(new_ranks_[i]) + skip_);
          shape_.prefetch_row(row);
          at[begin / kBlock % 2][i - begin] = row;
        }
    };
    prefetch_entries(0);
    resolve(0);
    prefetch_entries(kBlock);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      prefetch_entries(begin + 2 * kBlock);
      resolve(begin + kBlock);
      for (std::size_t i = begin; i < std::min(begin + kBlock, count); ++i) {
        std::uint8_t* to = new_bytes_.data() + (first + i) * shape_.bytes;
        if (known_[first + i] < 0) {
          new_lengths_[first + i] = shape_.copy(shard, at[begin / kBlock % 2][i - begin], to);
        } else {
          const auto old = static_cast<std::size_t>(known_[first + i]);
          std::memcpy(to, bytes_.data() + old * shape_.bytes, shape_.bytes);
          new_lengths_[first + i] = lengths_[old];
        }
      }
    }
  }

  // Merge the rows of all parts in lexicographic order, and sum up the occurrences that they stand for.
  void merge() {
    const std::size_t count = lengths_.size();
    order_.resize(count);
    weights_.resize(count + 1);
    weights_[0] = 0;
    if (parts_.size() == 1) {
      std::iota(order_.begin(), order_.end(), 0U);
    } else {
      merge_heads();
      for (std::size_t i = 0; i < count; ++i) order_[i] = heads_[i].row;
    }
    if (all_) std::iota(weights_.begin(), weights_.end(), std::uint64_t{0});  // every row stands for itself
    else if (parts_.size() == 1) weigh_rows_of_one_part();
    else weigh_rows();
  }

  // Put the heads of all rows in lexicographic order: neighbouring runs are merged in pairs.
  void merge_heads() {
    const std::size_t count = lengths_.size();
    heads_.resize(count);
    for (std::size_t i = 0; i < count; ++i)
      heads_[i] = {load_big(bytes_.data() + i * shape_.bytes), static_cast<std::uint32_t>(i)};
    const auto before = [&](const Head& a, const Head& b) {
      if (a.key != b.key) return a.key < b.key;
      return std::memcmp(bytes_.data() + a.row * shape_.bytes, bytes_.data() + b.row * shape_.bytes, shape_.bytes) < 0;
    };
    bounds_.clear();
    for (const Part& part : parts_) bounds_.push_back(part.first);
    bounds_.push_back(count);
    while (bounds_.size() > 2) {
      scratch_.resize(count);
      std::size_t kept = 0;
      for (std::size_t r = 0; r + 1 < bounds_.size(); r += 2) {
        const auto from = heads_.begin();
        const std::size_t a = bounds_[r], b = bounds_[r + 1], c = bounds_[std::min(r + 2, bounds_.size() - 1)];
        std::merge(from + static_cast<std::ptrdiff_t>(a), from + static_cast<std::ptrdiff_t>(b),
                   from + static_cast<std::ptrdiff_t>(b), from + static_cast<std::ptrdiff_t>(c),
                   scratch_.begin() + static_cast<std::ptrdiff_t>(a), before);
        bounds_[kept++] = a;
      }
      bounds_[kept++] = count;
      bounds_.resize(kept);
      heads_.swap(scratch_);
    }
  }

  void weigh_rows_of_one_part() {
    const Part& part = parts_[0];
    for (std::size_t i = 0; i < part.ranks.size(); ++i) weights_[i + 1] = part.ranks[i] + 1 - part.interval.begin;
  }

  // The same with several parts, in merged order; fills `before_`, too.
  void weigh_rows() {
    const std::size_t count = order_.size(), parts = parts_.size();
    owners_.resize(count);
    for (std::size_t p = 0; p < parts; ++p)
      std::fill_n(owners_.begin() + static_cast<std::ptrdiff_t>(parts_[p].first), parts_[p].ranks.size(),
                  static_cast<std::uint32_t>(p));
    before_.resize((count + 1) * parts);
    std::fill_n(before_.begin(), parts, 0U);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t* counts = before_.data() + i * parts;
      const std::uint32_t owner = owners_[order_[i]];
      weights_[i + 1] = weights_[i] + parts_[owner].gap_before(counts[owner]).width() + 1;
      std::copy_n(counts, parts, counts + parts);
      ++counts[parts + owner];
    }
  }

  std::uint32_t skip_ = 0;
  RowShape shape_;
  bool all_ = false;  // every occurrence has its own row
  std::uint64_t unseen_ = 0, most_unseen_ = 0;
  std::vector<Part> parts_;
  std::vector<std::uint8_t> bytes_, new_bytes_;
  std::vector<std::uint32_t> lengths_, new_lengths_, order_, owners_;
  std::vector<Head> heads_, scratch_;
  std::vector<std::uint32_t> before_;  // with several parts: rows of each part before each merged row
  std::vector<std::uint64_t> weights_;
  std::vector<std::size_t> bounds_;
  std::vector<Rank> new_ranks_;
  std::vector<std::ptrdiff_t> known_;
};

}  // namespace rest_store
