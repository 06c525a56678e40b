// Draft trees: the continuations of a match with the most occurrences, with exact counts.
//
// SPLITTING INTERVALS. Continuations form a trie. Suffixes are sorted, so the occurrences of a node
// are an interval of ranks in each shard, those of its children lie side by side in it, and the
// count of a node is the sum of its widths.
//
// The naive way: read the next tokens of all occurrences of the match, level by level. A line break
// has millions of occurrences, and the tree has 64 nodes.
//
// A sample is not enough. If every thousandth occurrence is read, a child with 900 occurrences may
// be missed, one with 1,100 may be seen twice, and both are counted as if they had another number:
// counts are wrong, and so is the choice of the 64 nodes.
//
// The rule: samples find the children, and binary searches count them.
// 1. If there are few occurrences, all are read, and nothing has to be estimated.
// 2. Else a trie of few samples estimates the count of the last node of the tree. A node with a
//    somewhat smaller count, `least`, may belong to the tree; a lighter one does not.
// 3. The trie is grown again, level by level. Samples are added until every child with `least`
//    occurrences is seen: strides of less than `least` miss none. Where the next tokens at two
//    ranks are equal, so are all between them, and nothing is read there.
// 4. The children seen that may have `least` occurrences are counted exactly: binary searches find
//    the boundaries of their intervals in the gaps between samples.
// 5. If the trie has too few nodes, the estimate was too great: 3 and 4 are repeated with a smaller
//    `least`.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "search/sharing.hpp"
#include "trees/tree_columns.hpp"

namespace rest_store {

// Bounds on the size of a draft tree.
struct TreeLimits {
  std::uint32_t max_nodes;  // 1 .. kMaxNodes
  std::uint32_t max_depth;  // in tokens, 1 .. kMaxDepth
};

// A draft tree and the match that it continues.
struct MatchTree {
  std::uint32_t match_length = 0;  // tokens
  std::uint64_t match_count = 0;   // occurrences
  std::vector<char> columns;       // the nodes, in the layout of tree_columns.hpp
};

// Drafts trees. Keeps its memory between calls. Not thread-safe.
class Drafter {
 public:
  // The tree of the `max_nodes` heaviest continuations of at most `max_depth` tokens of `match`, in
  // the order of FORMAT.md, section 7; empty for a match without occurrences. `match`: has an
  // interval for each of `shards`. `vocabulary`: tokens are below it. `sharing`: limits the reader;
  // null: it may learn of everything.
  MatchTree draft(const std::vector<ShardView>& shards, const Match& match,
                  std::uint32_t vocabulary, const TreeLimits& limits, const Sharing* sharing) {
    if (match.count == 0) return {};
    limits_ = limits;
    sharing_ = sharing;
    shards_ = &shards;
    begin(shards, match, vocabulary);
    is_exact_ = false;
    std::uint64_t occurrences = 0;
    for (const Interval& interval : match.intervals) occurrences += interval.width();
    set_strides(occurrences <= kFew * limits.max_nodes
                    ? 1
                    : 2 * occurrences / (kSampled * limits.max_nodes));
    read_samples();
    grow(1);
    if (unseen_ > 0) {  // then the counts are estimates
      is_exact_ = true;
      std::uint64_t least = counts_.size() < limits.max_nodes ? 1 : counts_.back();
      do {
        least = std::max<std::uint64_t>(1, least * kCaution / 16);
        grow(least);
      } while (counts_.size() < limits.max_nodes && least > 1);
    }
    return {match.length, match.count, best_nodes(limits.max_nodes)};
  }

 private:
  // Up to so many occurrences are all read, times max_nodes.
  static constexpr std::uint64_t kFew = 16;
  // Else about so many samples are read for an estimate, times max_nodes.
  static constexpr std::uint64_t kSampled = 7;
  static constexpr std::uint64_t kCaution = 14;  // `least`, in sixteenths of the estimate
  // A wide gap between different tokens gets about so many samples at once.
  static constexpr std::uint64_t kFanOut = 16;
  // Bits of a node's index where nodes are sorted; its count has the others.
  static constexpr unsigned kIndexBits = 24;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  // A node of the trie; the first is the match itself.
  struct Node {
    std::uint32_t parent;
    std::uint32_t depth;
    Token token;
    std::uint64_t count;
  };

  // A shard in which the match occurs.
  struct MatchedShard {
    const ShardView* view;
    std::size_t number;    // among all shards
    double root;           // the square root of the number of occurrences in it
    std::uint64_t stride;  // ranks from one sample to the next
  };

  // An occurrence that is read.
  struct Sample {
    Rank rank;
    Position position;  // of the match
    Token token;        // at the present level
  };

  // The occurrences of a node in one shard, and the samples first .. last - 1 among them.
  struct Piece {
    std::uint32_t shard;  // index in matched_shards_
    std::uint32_t first, last;
    Interval ranks;
  };

  // A node of the deepest level, whose children are found next.
  struct Open {
    std::uint32_t node;         // its index
    std::uint32_t first, last;  // its occurrences are the pieces first .. last - 1
  };

  // The samples first .. last - 1 of a piece, which have one token.
  struct Run {
    std::uint32_t piece;
    std::uint32_t first, last;
    std::uint32_t next;  // the run of the same child in a piece before, or kNone
  };

  // A child that samples show.
  struct Child {
    Token token;
    std::uint32_t run;    // its last one
    std::uint64_t count;  // the most occurrences that it can have, or an estimate (`is_exact_`)
  };

  // A child that may have enough occurrences.
  struct Candidate {
    std::uint32_t parent;
    Token token;
    std::uint32_t first,
        last;  // candidate_pieces_[first .. last - 1], whose boundaries are searched
  };

  // A boundary of one of `candidate_pieces_`.
  struct PieceBoundary : Boundary {
    std::size_t piece;
  };

  // Begin with the match as the only node.
  void begin(const std::vector<ShardView>& shards, const Match& match, std::uint32_t vocabulary) {
    child_of_.resize(vocabulary, kNone);
    match_ = &match;
    matched_shards_.clear();
    root_.clear();
    for (std::size_t i = 0; i < shards.size(); ++i)
      if (const Interval& ranks = match.intervals[i]; ranks.width() > 0) {
        root_.push_back({static_cast<std::uint32_t>(matched_shards_.size()), 0, 0, ranks});
        matched_shards_.push_back(
            {&shards[i], i, std::sqrt(static_cast<double>(ranks.width())), 1});
      }
  }

  // Set the strides of samples, such that all children with `least` occurrences are seen. A child
  // that no sample shows has less than a stride of occurrences in each shard. All strides together
  // are half of `least`, so that a child that one sample shows has fewer as well. Of all strides
  // with this sum, those that grow with the square root of a shard's occurrences read the fewest
  // samples.
  void set_strides(std::uint64_t least) {
    double roots = 0;
    for (const MatchedShard& shard : matched_shards_) roots += shard.root;
    unseen_ = 0;
    for (MatchedShard& shard : matched_shards_) {
      const double stride = shard.root / roots * static_cast<double>(least) / 2;
      shard.stride = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(stride));
      unseen_ += shard.stride - 1;
    }
  }

  // Read a sample of each stride of the match.
  void read_samples() {
    refined_.clear();
    fresh_.clear();
    for (Piece& piece : root_) {
      piece.first = static_cast<std::uint32_t>(refined_.size());
      add_samples(piece.shard, piece.ranks, matched_shards_[piece.shard].stride);
      piece.last = static_cast<std::uint32_t>(refined_.size());
    }
    root_samples_.swap(refined_);
    read_positions(root_samples_, match_->length);
  }

  // Grow the trie of all nodes with at least `least` occurrences, or fewer levels and nodes of it
  // if it has more than enough: the heaviest are among them.
  void grow(std::uint64_t least) {
    nodes_.assign(1, {0, 0, 0, match_->count});
    counts_.clear();
    pieces_ = root_;
    samples_ = root_samples_;
    open_.assign(1, {0, 0, static_cast<std::uint32_t>(pieces_.size())});
    for (std::uint32_t depth = 0; depth < limits_.max_depth && !open_.empty(); ++depth) {
      split(match_->length + depth, least);
      if (counts_.size() < limits_.max_nodes) continue;
      const auto last = counts_.begin() + limits_.max_nodes - 1;
      std::nth_element(counts_.begin(), last, counts_.end(), std::greater<>());
      counts_.resize(limits_.max_nodes);
      // Of equal counts the shallower node is taken, so deeper ones have to have more.
      least = std::max(least, counts_.back() + 1);
      std::erase_if(open_, [&](const Open& open) { return nodes_[open.node].count < least; });
    }
  }

  // Append the children with at least `least` occurrences of the open nodes, in order of their
  // paths, and open them.
  void split(std::uint32_t skip, std::uint64_t least) {
    read_tokens(skip);
    if (is_exact_) {
      set_strides(least);
      while (refine(skip)) read_tokens(skip);
      if (open_[0].node == 0) {  // for when nodes turn out to be too few
        root_samples_ = samples_;
        root_ = pieces_;
      }
    }
    candidates_.clear();
    candidate_pieces_.clear();
    boundaries_.clear();
    for (const Open& open : open_) find_candidates(open, least);
    if (is_exact_) search_boundaries(skip);
    open_.clear();
    pieces_.clear();
    for (const Candidate& child : candidates_) {
      const auto first = static_cast<std::uint32_t>(pieces_.size());
      std::uint64_t count = 0;
      for (std::uint32_t i = child.first; i < child.last; ++i) {
        if (candidate_pieces_[i].ranks.width() == 0) continue;
        count += candidate_pieces_[i].ranks.width();
        pieces_.push_back(candidate_pieces_[i]);
      }
      if (sharing_ != nullptr) count = visible_count(first);
      if (count < least) {
        pieces_.resize(first);
        continue;
      }
      open_.push_back({static_cast<std::uint32_t>(nodes_.size()), first,
                       static_cast<std::uint32_t>(pieces_.size())});
      nodes_.push_back({child.parent, nodes_[child.parent].depth + 1, child.token, count});
      counts_.push_back(count);
    }
  }

  // How many occurrences in the pieces from `first` on the reader may learn of.
  std::uint64_t visible_count(std::size_t first) {
    intervals_.assign(shards_->size(), {});
    for (std::size_t i = first; i < pieces_.size(); ++i)
      intervals_[matched_shards_[pieces_[i].shard].number] = pieces_[i].ranks;
    return sharing_->visible(*shards_, intervals_).count;
  }

  // Add a sample of each `step` of `ranks`. Any `step` ranks in a row have one of them.
  void add_samples(std::uint32_t shard, const Interval& ranks, std::uint64_t step) {
    for (Rank rank = ranks.begin + step - 1; rank < ranks.end; rank += step) {
      fresh_.push_back({static_cast<std::uint32_t>(refined_.size()), shard});
      refined_.push_back({rank, 0, 0});
      prefetch(matched_shards_[shard].view->entry_address(rank));
    }
  }

  // Read the positions of fresh samples.
  void read_positions(std::vector<Sample>& samples, std::uint32_t skip) {
    for (const auto& [sample, number] : fresh_) {
      const ShardView& shard = *matched_shards_[number].view;
      samples[sample].position = shard.position(samples[sample].rank);
      prefetch(shard.suffix(samples[sample].position + skip));
    }
  }

  // Read the tokens of all samples of open nodes.
  void read_tokens(std::uint32_t skip) {
    for (const Open& open : open_)
      for (std::uint32_t i = open.first; i < open.last; ++i) {
        const ShardView& shard = *matched_shards_[pieces_[i].shard].view;
        const std::uint32_t shift = 64 - 8 * shard.width;
        for (std::uint32_t sample = pieces_[i].first; sample < pieces_[i].last; ++sample)
          samples_[sample].token =
              static_cast<Token>(load_big(shard.suffix(samples_[sample].position + skip)) >> shift);
      }
  }

  // Add samples to gaps of a stride or more, except between equal tokens. Returns whether any were
  // added.
  bool refine(std::uint32_t skip) {
    refined_.clear();
    fresh_.clear();
    for (const Open& open : open_)
      for (std::uint32_t i = open.first; i < open.last; ++i) {
        Piece& piece = pieces_[i];
        const std::uint64_t stride = matched_shards_[piece.shard].stride;
        const auto first = static_cast<std::uint32_t>(refined_.size());
        for (std::uint32_t sample = piece.first; sample <= piece.last; ++sample) {
          const bool is_inner = sample > piece.first && sample < piece.last;
          const Interval gap = gap_before(piece, sample);
          if (gap.width() >= stride &&
              !(is_inner && samples_[sample - 1].token == samples_[sample].token))
            add_samples(piece.shard, gap,
                        gap.width() <= 4 * kFanOut * stride ? stride : gap.width() / kFanOut);
          if (sample < piece.last) refined_.push_back(samples_[sample]);
        }
        piece.first = first;
        piece.last = static_cast<std::uint32_t>(refined_.size());
      }
    samples_.swap(refined_);
    read_positions(samples_, skip);
    return !fresh_.empty();
  }

  // The ranks at which the boundary before a sample of a piece may lie.
  Interval gap_before(const Piece& piece, std::uint32_t sample) const {
    return {sample == piece.first ? piece.ranks.begin : samples_[sample - 1].rank + 1,
            sample == piece.last ? piece.ranks.end : samples_[sample].rank};
  }

  // Append the children of a node that samples show and that may have `least` occurrences to
  // `candidates_`.
  void find_candidates(const Open& open, std::uint64_t least) {
    children_.clear();
    runs_.clear();
    for (std::uint32_t i = open.first; i < open.last; ++i) {
      const Piece& piece = pieces_[i];
      for (std::uint32_t sample = piece.first; sample < piece.last;) {
        const std::uint32_t first = sample;
        const Token token = samples_[sample].token;
        while (sample < piece.last && samples_[sample].token == token) ++sample;
        if (token < child_of_.size()) add_run(token, {i, first, sample, kNone});
      }
    }
    for (const Child& child : children_) child_of_[child.token] = kNone;
    std::erase_if(children_, [&](const Child& child) { return child.count < least; });
    std::sort(children_.begin(), children_.end(),
              [](const Child& a, const Child& b) { return a.token < b.token; });
    for (const Child& child : children_) add_candidate(open, child, least);
  }

  // Add the samples of one token in a piece to its child.
  void add_run(Token token, const Run& run) {
    std::uint32_t& at = child_of_[token];
    if (at == kNone) {
      at = static_cast<std::uint32_t>(children_.size());
      children_.push_back({token, kNone, is_exact_ ? unseen_ : 0});
    }
    const Interval end = gap_before(pieces_[run.piece], run.last);
    Child& child = children_[at];
    child.count +=
        (is_exact_ ? end.end : end.begin) - gap_before(pieces_[run.piece], run.first).begin;
    runs_.push_back({run.piece, run.first, run.last,
                     std::exchange(child.run, static_cast<std::uint32_t>(runs_.size()))});
  }

  // Append a child of `open` to `candidates_`, unless it occurs too rarely, with the boundaries
  // that have to be searched: those of its runs and, in a piece where no sample shows it, those of
  // the gap in which it may be.
  void add_candidate(const Open& open, const Child& child, std::uint64_t least) {
    const std::size_t boundary_count = boundaries_.size();
    const auto first = static_cast<std::uint32_t>(candidate_pieces_.size());
    std::uint64_t most = 0;
    std::uint32_t next = child.run;
    for (std::uint32_t i = open.last; i-- > open.first;) {
      const Piece& piece = pieces_[i];
      Run run{i, 0, 0, kNone};
      if (next != kNone && runs_[next].piece == i) {
        run = runs_[next];
        next = run.next;
      } else if (is_exact_) {
        const auto samples = std::span(samples_).subspan(piece.first, piece.last - piece.first);
        const auto at =
            std::partition_point(samples.begin(), samples.end(),
                                 [&](const Sample& sample) { return sample.token < child.token; });
        run.first = run.last = piece.first + static_cast<std::uint32_t>(at - samples.begin());
      } else {
        continue;
      }
      const Interval begin = gap_before(piece, run.first), end = gap_before(piece, run.last);
      if (begin.begin == end.end) continue;
      if (is_exact_ && begin.width() > 0) add_boundary(piece, begin, false);
      if (is_exact_ && end.width() > 0) add_boundary(piece, end, true);
      candidate_pieces_.push_back({piece.shard, run.first, run.last, {begin.begin, end.begin}});
      most += end.end - begin.begin;
    }
    if (most >= least) {
      candidates_.push_back(
          {open.node, child.token, first, static_cast<std::uint32_t>(candidate_pieces_.size())});
    } else {
      boundaries_.resize(boundary_count);
      candidate_pieces_.resize(first);
    }
  }

  // Append a boundary of the next of `candidate_pieces_`: at its end if `after`, else at its begin.
  void add_boundary(const Piece& piece, const Interval& within, bool after) {
    const ShardView& shard = *matched_shards_[piece.shard].view;
    boundaries_.push_back({{&shard, nullptr, shard.width, 0, after, within.begin, within.end, 0},
                           candidate_pieces_.size()});
  }

  // Search the boundaries of candidates, whose next token is `skip` symbols into a suffix.
  void search_boundaries(std::uint32_t skip) {
    patterns_.resize(candidate_pieces_.size());
    for (const Candidate& child : candidates_)
      for (std::uint32_t i = child.first; i < child.last; ++i)
        patterns_[i] = big_endian(child.token, matched_shards_[0].view->width);
    for (PieceBoundary& boundary : boundaries_) {
      boundary.pattern = reinterpret_cast<const std::uint8_t*>(&patterns_[boundary.piece]);
      boundary.skip = skip;
    }
    find_boundaries(std::span(boundaries_));
    for (const PieceBoundary& boundary : boundaries_)
      (boundary.after ? candidate_pieces_[boundary.piece].ranks.end
                      : candidate_pieces_[boundary.piece].ranks.begin) = boundary.low;
    for (Piece& piece : candidate_pieces_)
      piece.ranks.end = std::max(piece.ranks.begin, piece.ranks.end);  // in a damaged file
  }

  // Eight bytes that begin with those of `token` in a tokens file.
  static std::uint64_t big_endian(Token token, std::uint32_t width) {
    return __builtin_bswap64(std::uint64_t{token} << (64 - 8 * width));
  }

  // The columns of the best nodes: by count, then by depth and path, the order in which they were
  // added.
  std::vector<char> best_nodes(std::size_t max_nodes) {
    order_.clear();
    for (std::size_t i = 1; i < nodes_.size(); ++i)
      order_.push_back(~nodes_[i].count << kIndexBits | i);
    const std::size_t size = std::min(max_nodes, order_.size());
    const auto end = order_.begin() + static_cast<std::ptrdiff_t>(size);
    if (end != order_.end()) std::nth_element(order_.begin(), end, order_.end());
    std::sort(order_.begin(), end);
    std::vector<char> out(kNodeBytes * size);
    const auto put = [&](std::size_t column, std::size_t i, auto value) {
      std::memcpy(out.data() + column * size + i * sizeof value, &value, sizeof value);
    };
    outputs_.resize(nodes_.size());
    outputs_[0] = -1;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t at = order_[i] & ((std::uint64_t{1} << kIndexBits) - 1);
      const Node& node = nodes_[at];
      outputs_[at] = static_cast<std::int32_t>(i);
      // Parents come first, since none has fewer occurrences than a child.
      put(kCountsAt, i, node.count);
      put(kTokensAt, i, node.token);
      put(kParentsAt, i, outputs_[node.parent]);
      put(kDepthsAt, i, node.depth);
    }
    return out;
  }

  const Match* match_ = nullptr;
  const Sharing* sharing_ = nullptr;
  const std::vector<ShardView>* shards_ = nullptr;
  std::vector<Interval> intervals_;  // of a node, one for each shard
  TreeLimits limits_{};
  bool is_exact_ = false;     // whether children are counted, not estimated from samples
  std::uint64_t unseen_ = 0;  // the most occurrences of a child that no sample shows
  std::vector<MatchedShard> matched_shards_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> counts_;  // the greatest of the nodes
  // The match and its samples, and those of the deepest level.
  std::vector<Piece> root_, pieces_;
  std::vector<Piece> candidate_pieces_;  // of children that may have enough occurrences
  std::vector<Sample> root_samples_, samples_, refined_;
  std::vector<Open> open_;
  // The samples that have to be read, and their shards in matched_shards_.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> fresh_;
  std::vector<std::uint32_t> child_of_;  // of each token; kNone: none
  std::vector<Child> children_;
  std::vector<Run> runs_;
  std::vector<Candidate> candidates_;
  std::vector<PieceBoundary> boundaries_;
  std::vector<std::uint64_t> patterns_;
  std::vector<std::uint64_t> order_;   // of nodes: by count, from the greatest on, then by index
  std::vector<std::int32_t> outputs_;  // the index of each node in the tree
};

}  // namespace rest_store
