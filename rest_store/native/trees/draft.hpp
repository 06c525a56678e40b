// Draft trees: the continuations of a match with the most occurrences, with exact counts.
//
// Continuations form a trie, and each of its nodes is an interval of ranks in every shard. The trie is grown level by
// level. Suffixes are sorted: where the next tokens at two ranks are equal, so are all between them. So only ranks
// between different tokens are read, and none closer together than it takes to see every child with enough
// occurrences. Of the children seen, those that may have enough are counted exactly, by binary searches.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "search/match.hpp"

namespace rest_store {

// Bytes of a node: count (8), then token, parent and depth (4 each), column by column.
inline constexpr std::size_t kNodeSize = 20;

// How large a draft tree may become.
struct Limits {
  std::uint32_t max_nodes;
  std::uint32_t max_depth;  // tokens
};

// A draft tree and the match that it continues.
struct PackedTree {
  std::uint32_t match_length = 0;  // tokens
  std::uint64_t match_count = 0;   // occurrences
  std::vector<char> nodes;         // packed, as rest_store/datastore/tree.py describes it
};

// Drafts trees; keeps its memory between calls. Not thread-safe.
class Drafter {
 public:
  // The tree of the `max_nodes` heaviest continuations of at most `max_depth` tokens of `match`, in the order of
  // FORMAT.md, section 7.
  PackedTree draft(const std::vector<ShardView>& shards, const Match& match, std::uint32_t vocabulary,
                   const Limits& limits) {
    if (match.count == 0) return {};
    vocabulary_ = vocabulary;
    begin(shards, match);
    // The fewer occurrences a node has to have, the more is read. How many the last one of the tree has is estimated
    // from how many nodes have more than was asked for before.
    std::uint64_t least = match.count > kFew * limits.max_nodes ? match.count / limits.max_nodes : 1;
    for (;;) {
      grow(match, limits, least);
      const std::size_t count = nodes_.size() - 1;
      if (count >= limits.max_nodes || least == 1) break;
      least = std::max<std::uint64_t>(1, least * (3 * count + 1) / (4 * limits.max_nodes));
    }
    return {match.length, match.count, pack(limits.max_nodes)};
  }

  // Whether an unusual query has left much more memory allocated than most queries need.
  bool holds_excess() const { return probes_.capacity() > kKept || nodes_.capacity() > kKept; }

 private:
  static constexpr std::size_t kKept = std::size_t{1} << 16;
  static constexpr std::uint64_t kFew = 4;      // times max_nodes: so many occurrences are all read
  static constexpr std::uint64_t kFanOut = 16;  // parts in which a gap between different tokens is cut

  // A node of the trie; the first is the match itself. Its intervals, one for each part, are in `intervals_`.
  struct Node {
    std::uint32_t parent;
    std::uint32_t depth;
    Token token;
    std::uint64_t count;
  };

  // A shard that has the match.
  struct Part {
    const ShardView* shard;
    double root;           // of the occurrences in it
    std::uint64_t stride;  // ranks between those that are read, at most
  };

  // A rank at which the next token is read, in the interval of an open node.
  struct Probe {
    Rank rank;
    std::uint32_t node, part;
    Token token;
  };

  // Probes first .. last - 1 of a node in one part. `at` is the first whose token has not been taken yet, `token` that
  // token, or the vocabulary at the end; probes run .. at - 1 have the token taken last.
  struct Cursor {
    std::size_t first, run, at, last;
    Token token;
  };

  // A child that may have enough occurrences; its intervals are in `found_`, as soon as they are known.
  struct Candidate {
    std::uint32_t parent;
    Token token;
  };

  // A boundary of the child whose interval is `found`.
  struct ChildBoundary : Boundary {
    std::size_t found;
  };

  void begin(const std::vector<ShardView>& shards, const Match& match) {
    parts_.clear();
    root_.clear();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const Interval& interval = match.intervals[i];
      if (interval.width() == 0) continue;
      parts_.push_back({&shards[i], std::sqrt(static_cast<double>(interval.width())), 1});
      root_.push_back(interval);
    }
  }

  // Grow the trie of all nodes with at least `least` occurrences, or fewer levels and nodes of it if it has more than
  // enough: the heaviest `max_nodes` are among them.
  void grow(const Match& match, const Limits& limits, std::uint64_t least) {
    nodes_.assign(1, {0, 0, 0, match.count});
    intervals_ = root_;
    std::size_t level = 0;  // first node of the deepest level
    for (std::uint32_t depth = 1; depth <= limits.max_depth; ++depth) {
      const std::size_t end = nodes_.size();
      split(level, match.length + depth - 1, least);
      level = end;
      if (nodes_.size() == end) break;
      // Of equal counts the shallower node is taken, so deeper ones have to have more.
      if (nodes_.size() > limits.max_nodes) least = std::max(least, nth_count(limits.max_nodes) + 1);
    }
  }

  // Append the children with at least `least` occurrences of the nodes from `first` on, in order of their paths.
  void split(std::size_t first, std::uint32_t skip, std::uint64_t least) {
    const std::size_t end = nodes_.size();
    set_strides(least);
    probes_.clear();
    fresh_.clear();
    for (std::size_t node = first; node < end; ++node) {
      if (nodes_[node].count < least) continue;
      for (std::size_t part = 0; part < parts_.size(); ++part) {
        const Interval& interval = intervals_[node * parts_.size() + part];
        if (interval.width() == 0) continue;
        add_probe(probes_, interval.begin, node, part);
        if (interval.width() > 1) add_probe(probes_, interval.end - 1, node, part);
      }
    }
    read(skip);
    while (refine()) read(skip);
    find_candidates(least);
    search_boundaries(skip);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const auto intervals = std::span(found_).subspan(i * parts_.size(), parts_.size());
      std::uint64_t count = 0;
      for (const Interval& interval : intervals) count += interval.width();
      if (count < least) continue;
      const Candidate& child = candidates_[i];
      nodes_.push_back({child.parent, nodes_[child.parent].depth + 1, child.token, count});
      intervals_.insert(intervals_.end(), intervals.begin(), intervals.end());
    }
  }

  // A child that no probe shows has less than a stride of occurrences in each part. All strides together are half of
  // what is asked for, so that a child that one probe shows has too few as well. For a given sum, the fewest ranks are
  // read if the stride of a part grows with the square root of its occurrences.
  void set_strides(std::uint64_t least) {
    double roots = 0;
    for (const Part& part : parts_) roots += part.root;
    unseen_ = 0;
    for (Part& part : parts_) {
      const double stride = part.root / roots * static_cast<double>(least) / 2;
      part.stride = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(stride));
      unseen_ += part.stride - 1;
    }
  }

  void add_probe(std::vector<Probe>& probes, Rank rank, std::size_t node, std::size_t part) {
    fresh_.push_back(static_cast<std::uint32_t>(probes.size()));
    probes.push_back({rank, static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(part), 0});
  }

  // Read the tokens of fresh probes: entries, then symbols, all prefetched.
  void read(std::uint32_t skip) {
    constexpr std::size_t kAhead = 32;
    const std::size_t count = fresh_.size();
    symbols_.resize(count);
    const auto entry = [&](std::size_t i) {
      const Probe& probe = probes_[fresh_[i]];
      return parts_[probe.part].shard->entry_address(probe.rank);
    };
    for (std::size_t i = 0; i < std::min(kAhead, count); ++i) prefetch(entry(i));
    for (std::size_t i = 0; i < count + kAhead; ++i) {
      if (i + kAhead < count) prefetch(entry(i + kAhead));
      if (i < count) {
        const Probe& probe = probes_[fresh_[i]];
        const ShardView& shard = *parts_[probe.part].shard;
        symbols_[i] = shard.suffix(shard.position(probe.rank) + skip);
        prefetch(symbols_[i]);
      }
      if (i >= kAhead) {
        Probe& probe = probes_[fresh_[i - kAhead]];
        probe.token = static_cast<Token>(load_big(symbols_[i - kAhead]) >> (64 - 8 * parts_[probe.part].shard->width));
      }
    }
  }

  // Add probes between those with different tokens that are more than a stride apart; return whether there are any.
  bool refine() {
    refined_.clear();
    fresh_.clear();
    for (std::size_t i = 0; i < probes_.size(); ++i) {
      const Probe& probe = probes_[i];
      refined_.push_back(probe);
      if (i + 1 == probes_.size() || !same_interval(probe, probes_[i + 1]) || probe.token == probes_[i + 1].token)
        continue;
      const std::uint64_t gap = probes_[i + 1].rank - probe.rank, stride = parts_[probe.part].stride;
      if (gap <= stride) continue;
      const std::uint64_t step = gap <= 4 * kFanOut * stride ? stride : gap / kFanOut;
      for (Rank rank = probe.rank + step; rank < probes_[i + 1].rank; rank += step)
        add_probe(refined_, rank, probe.node, probe.part);
    }
    probes_.swap(refined_);
    return !fresh_.empty();
  }

  static bool same_interval(const Probe& a, const Probe& b) { return a.node == b.node && a.part == b.part; }

  // Collect the children that probes show and that may have `least` occurrences, and the boundaries to be searched.
  void find_candidates(std::uint64_t least) {
    candidates_.clear();
    found_.clear();
    boundaries_.clear();
    for (std::size_t i = 0; i < probes_.size();) {
      const std::uint32_t node = probes_[i].node;
      cursors_.assign(parts_.size(), {0, 0, 0, 0, vocabulary_});
      while (i < probes_.size() && probes_[i].node == node) {
        const std::size_t begin = i;
        while (i < probes_.size() && same_interval(probes_[i], probes_[begin])) ++i;
        cursors_[probes_[begin].part] = {begin, begin, begin, i, probes_[begin].token};
      }
      for (;;) {
        Token token = vocabulary_;
        for (const Cursor& cursor : cursors_) token = std::min(token, cursor.token);
        if (token >= vocabulary_) break;
        if (take(token) >= least) add_candidate(node, token, least);
      }
    }
  }

  // Move the cursors at `token` past it. Returns how often it may occur, at most.
  std::uint64_t take(Token token) {
    std::uint64_t most = unseen_;
    for (Cursor& cursor : cursors_) {
      cursor.run = cursor.at;
      if (cursor.token != token) continue;
      while (cursor.at < cursor.last && probes_[cursor.at].token == token) ++cursor.at;
      cursor.token = cursor.at < cursor.last ? probes_[cursor.at].token : vocabulary_;
      most += gap_before(cursor, cursor.at).end - gap_before(cursor, cursor.run).begin;
    }
    return most;
  }

  // The ranks at which the boundary before probe `i` of a node in one part may lie.
  Interval gap_before(const Cursor& cursor, std::size_t i) const {
    return {i == cursor.first ? probes_[i].rank : probes_[i - 1].rank + 1,
            i == cursor.last ? probes_[i - 1].rank + 1 : probes_[i].rank};
  }

  // Add the child of `node` by `token`, which has been taken last, unless it occurs too rarely.
  void add_candidate(std::uint32_t node, Token token, std::uint64_t least) {
    const std::size_t boundary_count = boundaries_.size(), found_count = found_.size();
    std::uint64_t most = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      const Cursor& cursor = cursors_[part];
      if (cursor.first == cursor.last) {
        found_.push_back({});
        continue;
      }
      const Interval begin = gap_before(cursor, cursor.run), end = gap_before(cursor, cursor.at);
      if (begin.width() > 0) add_boundary(part, begin, false);
      if (end.width() > 0) add_boundary(part, end, true);
      found_.push_back({begin.begin, end.begin});
      most += end.end - begin.begin;
    }
    if (most >= least) {
      candidates_.push_back({node, token});
    } else {
      boundaries_.resize(boundary_count);
      found_.resize(found_count);
    }
  }

  void add_boundary(std::size_t part, const Interval& within, bool after) {
    const ShardView& shard = *parts_[part].shard;
    boundaries_.push_back({{&shard, nullptr, shard.width, 0, after, within.begin, within.end, 0}, found_.size()});
  }

  // Search the boundaries of candidates, whose next token is `skip` symbols into a suffix.
  void search_boundaries(std::uint32_t skip) {
    patterns_.resize(candidates_.size());
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      patterns_[i] = big_endian(candidates_[i].token, parts_[0].shard->width);
    for (ChildBoundary& boundary : boundaries_) {
      boundary.pattern = reinterpret_cast<const std::uint8_t*>(&patterns_[boundary.found / parts_.size()]);
      boundary.skip = skip;
    }
    find_boundaries(std::span(boundaries_));
    for (const ChildBoundary& boundary : boundaries_)
      (boundary.after ? found_[boundary.found].end : found_[boundary.found].begin) = boundary.low;
    for (Interval& interval : found_) interval.end = std::max(interval.begin, interval.end);  // in a damaged file
  }

  // Eight bytes that begin with those of `token` in a tokens file.
  static std::uint64_t big_endian(Token token, std::uint32_t width) {
    return __builtin_bswap64(std::uint64_t{token} << (64 - 8 * width));
  }

  // The `n`-th greatest count of the nodes, of which there are as many.
  std::uint64_t nth_count(std::size_t n) {
    counts_.clear();
    for (std::size_t i = 1; i < nodes_.size(); ++i) counts_.push_back(nodes_[i].count);
    const auto nth = counts_.begin() + static_cast<std::ptrdiff_t>(n - 1);
    std::nth_element(counts_.begin(), nth, counts_.end(), std::greater<>());
    return *nth;
  }

  // The best nodes: by count, then by depth and path, the order in which they were added.
  std::vector<char> pack(std::size_t max_nodes) {
    order_.resize(nodes_.size() - 1);
    std::iota(order_.begin(), order_.end(), 1U);
    const auto before = [this](std::uint32_t a, std::uint32_t b) {
      return nodes_[a].count != nodes_[b].count ? nodes_[a].count > nodes_[b].count : a < b;
    };
    if (order_.size() > max_nodes) {
      std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(max_nodes), order_.end(), before);
      order_.resize(max_nodes);
    }
    std::sort(order_.begin(), order_.end(), before);
    const std::size_t size = order_.size();
    std::vector<char> out(kNodeSize * size);
    const auto put = [&](std::size_t column, std::size_t i, auto value) {
      std::memcpy(out.data() + column * size + i * sizeof value, &value, sizeof value);
    };
    outputs_.resize(nodes_.size());
    outputs_[0] = -1;
    for (std::size_t i = 0; i < size; ++i) {
      const Node& node = nodes_[order_[i]];
      outputs_[order_[i]] = static_cast<std::int32_t>(i);  // parents come first: none has fewer occurrences
      put(0, i, node.count);
      put(8, i, node.token);
      put(12, i, outputs_[node.parent]);
      put(16, i, node.depth);
    }
    return out;
  }

  Token vocabulary_ = 0;
  std::vector<Part> parts_;
  std::uint64_t unseen_ = 0;  // occurrences of a child that no probe shows, at most
  std::vector<Node> nodes_;
  std::vector<Interval> root_, intervals_, found_;
  std::vector<Probe> probes_, refined_;
  std::vector<std::uint32_t> fresh_;  // probes that are to be read
  std::vector<const std::uint8_t*> symbols_;
  std::vector<Cursor> cursors_;
  std::vector<Candidate> candidates_;
  std::vector<ChildBoundary> boundaries_;
  std::vector<std::uint64_t> patterns_, counts_;
  std::vector<std::uint32_t> order_;
  std::vector<std::int32_t> outputs_;
};

}  // namespace rest_store
