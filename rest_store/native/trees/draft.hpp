// Draft trees: the continuations of a match with the most occurrences, with exact counts.
//
// Continuations form a trie. If there are few, all are read. If there are many, a sample is read: it bounds the count
// of every node that it shows, and every node that it does not show has fewer occurrences than the strides of all
// shards together. The sample is refined until the nodes that seem heaviest, counted exactly, are heavier than any
// unseen node. Then the other nodes are counted as far as they may belong to the heaviest, and the best are taken.
#pragma once

#include <array>
#include <functional>
#include <numeric>

#include "trees/packed_tree.hpp"
#include "trees/sample.hpp"

namespace rest_store {

class Drafter {
 public:
  // The tree of the `max_nodes` heaviest continuations of at most `max_depth` tokens of `match`, in the order of
  // FORMAT.md, section 7. `least`: occurrences that so many continuations are known to have, at least.
  PackedTree draft(const std::vector<ShardView>& shards, const Match& match, std::uint32_t vocabulary,
                   const Limits& limits, std::uint64_t least) {
    if (match.count == 0) return {};
    const RowShape shape(limits.max_depth, shards[0].width, vocabulary);
    max_nodes_ = limits.max_nodes;
    std::uint64_t wanted = std::uint64_t{kSamplesPerNode} * max_nodes_;
    if (match.count <= whole(match) * wanted) wanted = match.count;
    else if (least > 0)  // about as many rows as show all continuations with as many occurrences: no refinement
      wanted = std::clamp(3 * match.count / least, wanted / 3, match.count);
    sample_.start(shards, match, shape, wanted);
    floor_ = least;
    estimate_ = 0;
    for (;;) {
      // Probably only heavier nodes are needed; counting shows whether the guess was right.
      std::uint64_t guess = sample_.unseen() == 0 ? 0 : estimate_ * 7 / 8;
      collect(guess);
      if (nodes_.size() < max_nodes_ && guess > 0) collect(guess = 0);
      if (sample_.unseen() == 0) break;
      // A node with at most one row has at most so many occurrences.
      const std::uint64_t doubt = sample_.unseen() + sample_.most_unseen() + 1;
      if (estimate_ > doubt) {
        measure_heaviest(match.length);
        if (floor_ < guess) {
          collect(0);
          measure_heaviest(match.length);
        }
        if (floor_ > doubt) break;
      }
      sample_.refine(std::clamp(estimate_ * 5 / 8, doubt / 16, doubt / 2));
    }
    if (sample_.unseen() > 0) measure_others(match.length);
    else add_singles();
    choose();
    return {match.length, match.count, tree_.pack()};
  }

  // Whether an unusual query has left much more memory allocated than most queries need.
  bool holds_excess() const { return sample_.holds_excess(); }

 private:
  static constexpr std::uint32_t kSamplesPerNode = 9;

  // All occurrences are read if there are at most so many times as many as a first sample has. A sample of many shards
  // needs more refinement.
  static std::uint64_t whole(const Match& match) {
    const auto empty = std::count(match.intervals.begin(), match.intervals.end(), Interval());
    return 3 + std::min<std::uint64_t>(8, match.intervals.size() - static_cast<std::size_t>(empty)) / 4;
  }

  // A node of the trie: the first `depth` tokens of rows begin .. end - 1.
  struct Node {
    std::uint32_t begin, end, depth;
    std::uint64_t low;   // occurrences, at least; exact once counted
    std::uint64_t high;  // at most
  };

  // The ranks at which a node may begin and end in one shard.
  struct Bounds {
    Interval begin, end;
    std::uint64_t least() const { return end.begin - std::min(begin.end, end.begin); }
    std::uint64_t most() const { return end.end - std::min(begin.begin, end.end); }
  };

  // A node whose occurrences are being counted: its index in `nodes_`, and that of the first of its bounds, one per
  // shard.
  struct Measurement {
    std::uint32_t node, bounds;
  };

  // Sort key of a node: count, greatest first; then depth; then index in `nodes_`. Among nodes of one depth the index
  // is lexicographic, because rows are sorted and nodes are stored in the order in which they end.
  __extension__ using Key = unsigned __int128;
  Key key(std::size_t place) const {
    const Node& node = nodes_[place];
    return Key{~node.low} << 64 | std::uint64_t{node.depth} << 32 | place;
  }

  // Walk the sampled trie depth first and collect the nodes with at least two rows that may be among the heaviest. A
  // node with one row is light: it has at most a stride of occurrences and those that its shard and the others leave
  // unseen. Nodes that are certainly lighter than `guess` are left out.
  void collect(std::uint64_t guess) {
    nodes_.clear();
    estimate_ = 0;
    threshold_ = std::max(floor_, guess);
    threshold_depth_ = kMaxDepth + 1;
    capacity_ = 4 * std::size_t{max_nodes_};
    const auto rows = static_cast<std::uint32_t>(sample_.size());
    const std::uint64_t unseen = sample_.unseen(), most = sample_.most_unseen();
    shared_.resize(rows + 1);
    shared_[0] = 0;
    std::array<std::uint32_t, kMaxDepth + 1> begins{};  // first row of the open node at each depth
    std::uint32_t open = 0;                             // tokens in common with the row before
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::uint32_t next = row + 1 < rows ? sample_.common_prefix(row) : 0;
      shared_[row + 1] = next;
      for (std::uint32_t depth = open + 1; depth <= next; ++depth) begins[depth] = row;
      for (std::uint32_t depth = open; depth > next; --depth) {
        const std::uint32_t begin = begins[depth], end = row + 1;
        const std::uint64_t weight = sample_.weight(begin, end), missed = std::min(unseen, (end - begin) * most);
        const std::uint64_t high = weight + unseen;
        if (high < threshold_ || (unseen == 0 && high == threshold_ && depth >= threshold_depth_)) continue;
        nodes_.push_back(
            {begin, end, depth, std::max<std::uint64_t>(end - begin, weight - std::min(weight, missed)), high});
        if (nodes_.size() >= capacity_) prune();
      }
      open = next;
    }
    prune();
    if (unseen == 0 || nodes_.size() < max_nodes_) return;
    lows_.clear();
    for (const Node& node : nodes_) lows_.push_back(sample_.weight(node.begin, node.end));
    const auto nth = lows_.begin() + max_nodes_ - 1;
    std::nth_element(lows_.begin(), nth, lows_.end(), std::greater<>());
    estimate_ = *nth;
  }

  // Add continuations that occur once, if there is room and the sample is complete: by depth, then in row order.
  void add_singles() {
    if (nodes_.size() >= max_nodes_) return;
    const auto rows = static_cast<std::uint32_t>(sample_.size());
    std::size_t room = max_nodes_ - nodes_.size();
    std::uint32_t limit = 0,
                  last = 0;  // all singles up to depth `limit`, and of the next depth those of rows before `last`
    for (bool any = true; any && room > 0;) {
      any = false;
      ++limit;
      for (last = 0; last < rows && room > 0; ++last) {
        any |= sample_.length(last) > limit;
        room -= single_at(last, limit);
      }
    }
    ends_.swap(nodes_);
    nodes_.clear();
    auto inner = ends_.begin();
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::uint32_t deepest = std::min(sample_.length(row), row < last ? limit : limit - 1);
      for (std::uint32_t depth = deepest; depth > 0 && single_at(row, depth); --depth)
        nodes_.push_back({row, row + 1, depth, 1, 1});
      for (; inner != ends_.end() && inner->end == row + 1; ++inner) nodes_.push_back(*inner);
    }
  }

  bool single_at(std::uint32_t row, std::uint32_t depth) const {
    return depth > std::max(shared_[row], shared_[row + 1]) && depth <= sample_.length(row);
  }

  // Drop the nodes that cannot be among the heaviest, in place.
  void prune() {
    if (nodes_.size() < max_nodes_) return;
    keys_.resize(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) keys_[i] = key(i);
    const auto nth = keys_.begin() + max_nodes_ - 1;
    std::nth_element(keys_.begin(), nth, keys_.end());
    const std::uint64_t least = ~static_cast<std::uint64_t>(*nth >> 64);
    const bool exact = sample_.unseen() == 0;
    if (least >= threshold_) threshold_depth_ = static_cast<std::uint32_t>(*nth >> 32);
    threshold_ = std::max(threshold_, least);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (exact ? key(i) <= *nth : nodes_[i].high >= threshold_) nodes_[kept++] = nodes_[i];
    nodes_.resize(kept);
    capacity_ = std::max(capacity_, 2 * kept);
  }

  // Count the nodes that seem heaviest exactly. The least of these counts is one that other nodes have to reach.
  void measure_heaviest(std::uint32_t skip) {
    places_.resize(nodes_.size());
    std::iota(places_.begin(), places_.end(), 0U);
    const auto top = places_.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(max_nodes_, nodes_.size()));
    std::nth_element(places_.begin(), top, places_.end(), [this](std::uint32_t a, std::uint32_t b) {
      return sample_.weight(nodes_[a].begin, nodes_[a].end) > sample_.weight(nodes_[b].begin, nodes_[b].end);
    });
    start_measuring(std::span(places_.begin(), top));
    for (std::size_t part = 0; part < sample_.parts().size(); ++part) narrow(part, 0, skip);
    std::uint64_t least = ~std::uint64_t{0};
    for (const Measurement& measurement : measured_) least = std::min(least, nodes_[measurement.node].low);
    floor_ = std::max(floor_, least);
  }

  // Count the other nodes as far as they may be among the heaviest, step by step and shard by shard; each step excludes
  // some. Among nodes that show the same rows, as nodes of one path often do, the shallowest comes first: none is
  // heavier.
  void measure_others(std::uint32_t skip) {
    const auto top = places_.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(max_nodes_, places_.size()));
    std::sort(top, places_.end());
    top_lows_.clear();
    for (auto place = places_.begin(); place != top; ++place) top_lows_.push_back(nodes_[*place].low);
    first_.clear();
    for (auto place = top; place != places_.end(); ++place)
      if (place + 1 == places_.end() || !same_rows(nodes_[place[0]], nodes_[place[1]])) first_.push_back(*place);
    exclude(first_, skip);
    deeper_.clear();
    for (auto place = top; place != places_.end(); ++place) {
      const auto shallowest = std::lower_bound(first_.begin(), first_.end(), *place);
      const Node& above = nodes_[*shallowest];
      if (*shallowest != *place && above.low == above.high && above.low >= floor_) deeper_.push_back(*place);
    }
    exclude(deeper_, skip);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].low == nodes_[i].high) nodes_[kept++] = nodes_[i];
    nodes_.resize(kept);
  }

  static bool same_rows(const Node& a, const Node& b) { return a.begin == b.begin && a.end == b.end; }

  // Count the nodes at `places` until each count is exact or the node is known not to be among the heaviest.
  void exclude(std::span<const std::uint32_t> places, std::uint32_t skip) {
    const std::vector<Sample::Part>& parts = sample_.parts();
    start_measuring(places);
    for (std::uint32_t step = 1; !measured_.empty(); ++step) {
      bool exact = true;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const std::uint64_t gap = parts[part].slack() >> step;
        std::erase_if(measured_,
                      [this](const Measurement& measurement) { return nodes_[measurement.node].high < floor_; });
        narrow(part, gap > 4 ? gap : 0, skip);
        exact &= gap <= 4;
      }
      lows_ = top_lows_;
      for (const Measurement& measurement : measured_) lows_.push_back(nodes_[measurement.node].low);
      const auto nth = lows_.begin() + max_nodes_ - 1;
      std::nth_element(lows_.begin(), nth, lows_.end(), std::greater<>());
      floor_ = std::max(floor_, *nth);
      if (exact) break;
    }
  }

  // Begin to count the nodes at `places` with the bounds that the sample gives in each shard.
  void start_measuring(std::span<const std::uint32_t> places) {
    measured_.clear();
    bounds_.clear();
    for (const std::uint32_t place : places) {
      Node& node = nodes_[place];
      if (node.high < floor_) continue;
      measured_.push_back({place, static_cast<std::uint32_t>(bounds_.size())});
      node.low = node.high = 0;
      for (std::size_t part = 0; part < sample_.parts().size(); ++part) {
        bounds_.push_back({sample_.gap_before(part, node.begin), sample_.gap_before(part, node.end)});
        node.low += bounds_.back().least();
        node.high += bounds_.back().most();
      }
    }
  }

  // Narrow the boundaries of the measured nodes in one shard until at most `gap` ranks are in doubt.
  void narrow(std::size_t part, std::uint64_t gap, std::uint32_t skip) {
    boundaries_.clear();
    for (const Measurement& measurement : measured_) {
      const Node& node = nodes_[measurement.node];
      const Bounds& bounds = bounds_[measurement.bounds + part];
      Boundary boundary{sample_.parts()[part].shard,
                        sample_.row(node.begin),
                        node.depth * sample_.width(),
                        skip,
                        false,
                        bounds.begin.begin,
                        bounds.begin.end,
                        0};
      boundaries_.push_back(boundary);
      boundary.after = true;
      boundary.low = bounds.end.begin;
      boundary.high = bounds.end.end;
      boundaries_.push_back(boundary);
    }
    find_boundaries(boundaries_, gap);
    const Boundary* boundary = boundaries_.data();
    for (const Measurement& measurement : measured_) {
      Node& node = nodes_[measurement.node];
      Bounds& bounds = bounds_[measurement.bounds + part];
      node.low -= bounds.least();
      node.high -= bounds.most();
      bounds = {{boundary[0].low, boundary[0].high}, {boundary[1].low, boundary[1].high}};
      if (gap == 0) bounds.begin.end = bounds.begin.begin, bounds.end.end = bounds.end.begin;
      node.low += bounds.least();
      node.high += bounds.most();
      boundary += 2;
    }
  }

  // Put the best nodes into `tree_`, each with its parent.
  void choose() {
    keys_.clear();
    parents_.resize(nodes_.size());
    std::array<std::uint32_t, kMaxDepth + 1> path{}, singles{};
    for (std::size_t i = nodes_.size(); i-- > 0;) {  // backwards, because parents are stored after their children
      const Node& node = nodes_[i];
      if (node.low > 1) keys_.push_back(key(i));
      else ++singles[node.depth];
      path[node.depth] = static_cast<std::uint32_t>(i);
      parents_[i] = path[node.depth - 1];
    }
    const std::size_t count = std::min<std::size_t>(nodes_.size(), max_nodes_), heavier = keys_.size();
    if (count < heavier)
      std::nth_element(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(count), keys_.end());
    std::sort(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(std::min(count, heavier)));
    if (count > heavier) {  // nodes that occur once are often many, and in order within each depth
      keys_.resize(nodes_.size());
      std::exclusive_scan(singles.begin(), singles.end(), singles.begin(), static_cast<std::uint32_t>(heavier));
      for (std::size_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].low <= 1) keys_[singles[nodes_[i].depth]++] = key(i);
    }
    outputs_.assign(nodes_.size(), -1);
    tree_.clear();
    for (std::size_t k = 0; k < count; ++k) {
      const auto place = static_cast<std::uint32_t>(keys_[k]);
      const Node& node = nodes_[place];
      std::int32_t parent = -1;
      if (node.depth > 1) {
        // In a damaged file the parent may be missing, come later or not contain the node: leave the node out.
        const Node& above = nodes_[parents_[place]];
        parent = outputs_[parents_[place]];
        if (parent < 0 || above.depth + 1 != node.depth || above.begin > node.begin || above.end < node.end) continue;
      }
      outputs_[place] = static_cast<std::int32_t>(tree_.size());
      tree_.add(node.low, sample_.token(node.begin, node.depth - 1), parent, node.depth);
    }
  }

  std::uint32_t max_nodes_ = 0;
  std::uint64_t threshold_ = 0;        // occurrences of the max_nodes-th heaviest node, at least
  std::uint64_t floor_ = 0;            // a lower bound of it by exact counts
  std::uint64_t estimate_ = 0;         // an estimate of it; 0 if fewer nodes are seen
  std::uint32_t threshold_depth_ = 0;  // depth of that node
  std::size_t capacity_ = 0;           // nodes collected before the next prune
  Sample sample_;
  std::vector<Node> nodes_, ends_;
  std::vector<Measurement> measured_;
  std::vector<Bounds> bounds_;
  std::vector<Boundary> boundaries_;
  std::vector<std::uint64_t> lows_, top_lows_;
  std::vector<std::uint32_t> shared_, parents_, places_, first_, deeper_;
  std::vector<std::int32_t> outputs_;
  std::vector<Key> keys_;
  TreeColumns tree_;
};

}  // namespace rest_store
