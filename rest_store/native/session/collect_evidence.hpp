// Collects the evidence of datastores for a session in another process, along the paths that its draft tree may take.
// The session has more sources than these; its tree is guessed from the datastores and from what it proposes itself.
#pragma once

#include "session/acceptance.hpp"
#include "session/evidence_rows.hpp"
#include "session/frontier.hpp"

namespace rest_store {

// A node of the tree that the session's other sources would draft.
struct ProposedNode {
  Token token;
  std::int32_t parent;  // place among the proposals, before its own; -1: child of the context
  float probability;    // that it is accepted, given that its parent is
};

struct CollectorLimits {
  std::size_t max_nodes;   // of the session's tree
  std::size_t max_rows;    // most paths read, including the context itself
  std::size_t max_suffix;  // of the context, in tokens
};

// Not thread-safe; keeps its memory between calls.
class EvidenceCollector {
 public:
  // Read what `readers` know after `tail`, the end of a context, and after the paths that a session would expand to
  // build a tree of `max_rows` nodes.
  void collect(std::span<EvidenceReader* const> readers, const FittedTrees& trees, std::span<const Token> tail,
               std::span<const ProposedNode> proposals, const CollectorLimits& limits) {
    readers_ = readers;
    has_live_trees_ = !trees.live.empty();
    trees_ =
        &trees.of(std::any_of(readers.begin(), readers.end(), [](const EvidenceReader* one) { return one->live(); }));
    proposals_ = proposals;
    limits_ = limits;
    text_.assign(tail.begin(), tail.end());
    hit_rates_.stores.assign(readers.size(), HitRate());
    paths_.clear();
    nodes_.clear();
    frontier_.clear();
    pushed_ = 0;
    left_ = limits.max_rows;
    take({1, 0, 0, -1, -1, 1});
    while (left_ > 1 && !frontier_.empty()) {
      const Open best = frontier_.pop();
      if (frontier_.may_contribute(best.score, --left_) && depth_of(best) < limits.max_nodes) take(best);
    }
  }

  std::span<const PathEnd> paths() const { return paths_; }
  const Evidence& evidence(std::size_t row, std::size_t store) const { return source_evidence_[row].stores[store]; }

 private:
  struct Open {
    float score;
    std::uint32_t number;
    Token token;
    std::int32_t parent;    // row
    std::int32_t proposal;  // that ends the same path; -1: none
    float probability;
  };
  struct Node {
    std::size_t depth;
    float score;
    std::int32_t proposal;
  };

  std::size_t depth_of(const Open& open) const {
    return open.parent < 0 ? 0 : nodes_[static_cast<std::size_t>(open.parent)].depth + 1;
  }

  // The end of the context and the path of `open`.
  std::span<const Token> tail_of(const Open& open) {
    const std::size_t depth = depth_of(open), from = std::min(text_.size(), limits_.max_suffix);
    tail_.assign(text_.end() - static_cast<std::ptrdiff_t>(from), text_.end());
    tail_.resize(from + depth);
    if (depth == 0) return tail_;
    std::size_t place = tail_.size();
    tail_[--place] = open.token;
    for (std::int32_t row = open.parent; row > 0; row = paths_[static_cast<std::size_t>(row)].parent)
      tail_[--place] = paths_[static_cast<std::size_t>(row)].token;
    return tail_;
  }

  // Read the evidence of every datastore after `open`, the next row.
  SourceEvidence& read(const Open& open) {
    const std::span<const Token> tail = tail_of(open);
    if (paths_.size() == source_evidence_.size()) source_evidence_.emplace_back();
    SourceEvidence& sources = source_evidence_[paths_.size()];
    sources.stores.resize(readers_.size());
    sources.present.assign(readers_.size(), true);
    sources.live.resize(readers_.size());
    for (std::size_t i = 0; i < readers_.size(); ++i) sources.live[i] = has_live_trees_ && readers_[i]->live();
    requests_.clear();
    for (std::size_t i = 0; i < readers_.size(); ++i)
      requests_.push_back(
          {readers_[i], open.parent < 0 ? nullptr : &source_evidence_[static_cast<std::size_t>(open.parent)].stores[i],
           tail, &sources.stores[i]});
    EvidenceReader::read(requests_, [] {});
    return sources;
  }

  // Make a row of `open`, and push its continuations, unless a session would hardly expand any of them.
  void take(const Open& open) {
    const std::size_t row = paths_.size(), depth = depth_of(open);
    const SourceEvidence& sources = read(open);
    paths_.push_back({open.parent, open.token});
    nodes_.push_back({depth, open.score, open.proposal});
    if (!frontier_.may_contribute(open.score * kChildProbability, left_)) return;
    NodeFeatures features;
    features.depth = static_cast<float>(depth);
    features.score = open.score;
    features.probability = open.probability;
    candidates_.fill(sources, hit_rates_, features, lookup_, kLanes);
    std::array<float, kCandidates> probabilities = acceptance_probabilities(candidates_, *trees_, OnlineCalibration());
    std::array<std::int32_t, kCandidates> proposal_of;
    proposal_of.fill(-1);
    if (row == 0 || open.proposal >= 0)
      for (std::size_t i = 0; i < proposals_.size(); ++i) {
        const auto& [token, parent, probability] = proposals_[i];
        if (parent != open.proposal) continue;
        std::size_t candidate = 0;
        while (candidate < candidates_.size() && candidates_.token(candidate) != token) ++candidate;
        if (candidate == candidates_.size()) {
          push(row, token, static_cast<std::int32_t>(i), probability);
        } else {  // proposed by both: likelier than by either
          proposal_of[candidate] = static_cast<std::int32_t>(i);
          probabilities[candidate] += (1 - probabilities[candidate]) * probability;
        }
      }
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      push(row, candidates_.token(i), proposal_of[i], probabilities[i]);
  }

  void push(std::size_t row, Token token, std::int32_t proposal, float probability) {
    const float score = nodes_[row].score * probability;
    if (score >= frontier_.cutoff())
      frontier_.push({score, pushed_++, token, static_cast<std::int32_t>(row), proposal, probability});
  }

  std::span<EvidenceReader* const> readers_;
  const IntegerTrees* trees_ = nullptr;
  bool has_live_trees_ = false;
  std::span<const ProposedNode> proposals_;
  CollectorLimits limits_{};
  std::vector<Token> text_;
  HitRates hit_rates_;
  PromptLookup lookup_;  // empty: the session looks up its text itself
  std::vector<PathEnd> paths_;
  std::vector<Node> nodes_;
  std::vector<SourceEvidence> source_evidence_;  // of each row
  Frontier<Open> frontier_;
  std::uint32_t pushed_ = 0;
  std::size_t left_ = 0;  // nodes still to be taken
  std::vector<Token> tail_;
  std::vector<EvidenceReader::Request> requests_;
  CandidateTable candidates_;
};

}  // namespace rest_store
