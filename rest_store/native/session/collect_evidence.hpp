// What datastores know along the paths that a draft tree may take, read for a session elsewhere: it has more sources
// than these, so every path is read that it might want, the likeliest first, as far as can be told from here.
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

// Bounds of one collect_evidence.
struct CollectorLimits {
  std::size_t max_rows;    // paths read, that of the context among them
  std::size_t max_suffix;  // longest suffix of the context that is looked for, in tokens
  std::size_t max_depth;   // longest path, in tokens
};

// Not thread-safe; keeps its memory between calls.
class EvidenceCollector {
 public:
  // Read what `readers` know after `tail`, the end of a context.
  void run(std::span<EvidenceReader* const> readers, const Gbdt* gbdt, std::span<const Token> tail,
           std::span<const ProposedNode> proposals, const CollectorLimits& limits) {
    readers_ = readers;
    gbdt_ = gbdt;
    proposals_ = proposals;
    limits_ = limits;
    text_.assign(tail.begin(), tail.end());
    hit_rates_.stores.assign(readers.size(), HitRate());
    paths_.clear();
    nodes_.clear();
    open_.clear();
    number_ = 0;
    readings_ = 0;
    take({1, 0, 0, -1, -1, 1, read_root()});
    while (paths_.size() < limits.max_rows) {
      if (open_.empty() && !spread()) return;
      if (open_.best().reading < 0) read_ahead();
      take(open_.pop());
    }
  }

  std::span<const PathEnd> paths() const { return paths_; }
  const Evidence& evidence(std::size_t row, std::size_t store) const { return evidence_of(row).stores[store]; }

 private:
  struct Open {
    float score;
    std::uint32_t number;
    Token token;
    std::int32_t parent;    // row
    std::int32_t proposal;  // the proposal of the same path; -1: none
    float probability;
    std::int32_t reading = -1;  // place of what was read of it; -1: nothing yet
  };
  struct Node {
    std::size_t depth;
    float score;
    std::int32_t proposal;
    std::size_t reading;
  };

  static constexpr std::size_t kAhead = 8;  // paths read together: one waits for memory about as long as eight

  const SourceEvidence& evidence_of(std::size_t row) const { return source_evidence_[nodes_[row].reading]; }

  std::size_t depth_of(const Open& open) const {
    return open.parent < 0 ? 0 : nodes_[static_cast<std::size_t>(open.parent)].depth + 1;
  }

  SourceEvidence& next_reading() {
    if (source_evidence_.size() == readings_) source_evidence_.emplace_back();
    SourceEvidence& sources = source_evidence_[readings_++];
    sources.stores.resize(readers_.size());
    sources.present.assign(readers_.size(), true);
    return sources;
  }

  std::int32_t read_root() {
    SourceEvidence& sources = next_reading();
    const std::span<const Token> tail = std::span(text_).last(std::min(text_.size(), limits_.max_suffix));
    for (std::size_t i = 0; i < readers_.size(); ++i) readers_[i]->root(tail, sources.stores[i]);
    return 0;
  }

  // Read the best of what is open, and with it some that come next and will most likely be rows, too.
  void read_ahead() {
    const std::size_t left = limits_.max_rows - paths_.size();
    const std::size_t most = std::min({kAhead, (left + 1) / 2, open_.size()});
    ahead_.clear();
    source_evidence_.reserve(readings_ + most);  // children point into them
    tails_.resize(kAhead);
    children_.clear();
    while (ahead_.size() < most) {
      ahead_.push_back(open_.pop());
      Open& open = ahead_.back();
      if (open.reading >= 0) continue;
      open.reading = static_cast<std::int32_t>(readings_);
      SourceEvidence& own = next_reading();
      const SourceEvidence& above = evidence_of(static_cast<std::size_t>(open.parent));
      const std::span<const Token> tail = tail_of(open, tails_[ahead_.size() - 1]);
      for (std::size_t i = 0; i < readers_.size(); ++i)
        children_.push_back({readers_[i], &above.stores[i], tail, &own.stores[i]});
    }
    EvidenceReader::read(children_);
    for (const Open& open : ahead_) open_.push(open);
  }

  // The end of the context and the path of `open`, kept in `tail`.
  std::span<const Token> tail_of(const Open& open, std::vector<Token>& tail) const {
    const std::size_t depth = depth_of(open), from = std::min(text_.size(), limits_.max_suffix);
    tail.assign(text_.end() - static_cast<std::ptrdiff_t>(from), text_.end());
    tail.resize(from + depth);
    std::size_t place = tail.size();
    tail[--place] = open.token;
    for (std::int32_t at = open.parent; at > 0; at = paths_[static_cast<std::size_t>(at)].parent)
      tail[--place] = paths_[static_cast<std::size_t>(at)].token;
    return tail;
  }

  // Make a row of `open`, which has been read, and open its continuations.
  void take(const Open& open) {
    const std::size_t row = paths_.size();
    const std::size_t depth = depth_of(open);
    paths_.push_back({open.parent, open.token});
    nodes_.push_back({depth, open.score, open.proposal, static_cast<std::size_t>(open.reading)});
    if (depth == limits_.max_depth || !open_.may_contribute(open.score, limits_.max_rows - paths_.size())) return;
    const SourceEvidence& sources = evidence_of(row);
    Place features;
    features.depth = static_cast<float>(depth);
    features.score = open.score;
    features.probability = open.probability;
    candidates_.gather(sources, hit_rates_, features, lookup_, open.score >= 0.3F ? kCandidates : kLanes);
    std::array<float, kCandidates> probabilities = acceptance_probabilities(candidates_, gbdt_, OnlineCalibration());
    std::array<std::int32_t, kCandidates> proposal_of;
    proposal_of.fill(-1);
    if (row == 0 || open.proposal >= 0)
      for (std::size_t i = 0; i < proposals_.size(); ++i) {
        if (proposals_[i].parent != open.proposal) continue;
        std::size_t own = 0;
        while (own < candidates_.size() && candidates_.token(own) != proposals_[i].token) ++own;
        if (own == candidates_.size())
          push(row, proposals_[i].token, static_cast<std::int32_t>(i), proposals_[i].probability);
        else {
          proposal_of[own] = static_cast<std::int32_t>(i);
          probabilities[own] += (1 - probabilities[own]) * proposals_[i].probability;
        }
      }
    for (std::size_t own = 0; own < candidates_.size(); ++own)
      push(row, candidates_.token(own), proposal_of[own], probabilities[own]);
  }

  void push(std::size_t row, Token token, std::int32_t proposal, float probability) {
    const float score = nodes_[row].score * probability;
    if (score >= open_.bar())
      open_.push({score, number_++, token, static_cast<std::int32_t>(row), proposal, probability});
  }

  // When nothing is open any more: open, after every path, all tokens that were named by anybody. Whether there was
  // one.
  bool spread() {
    named_.clear();
    for (const ProposedNode& proposal : proposals_) named_.push_back(proposal.token);
    named_.insert(named_.end(), text_.begin(), text_.end());
    for (std::size_t row = 0; row < paths_.size(); ++row)
      for (const Evidence& evidence : evidence_of(row).stores)
        for (const BackoffLevel& level : evidence.levels)
          for (const Continuation& one : level.next) named_.push_back(one.token);
    std::sort(named_.begin(), named_.end());
    named_.erase(std::unique(named_.begin(), named_.end()), named_.end());
    for (std::size_t row = 0; row < paths_.size(); ++row) {
      if (nodes_[row].depth == limits_.max_depth) continue;
      for (const Token token : named_) {
        const auto known = [&](const PathEnd& path) {
          return path.parent == static_cast<std::int32_t>(row) && path.token == token;
        };
        if (std::none_of(paths_.begin() + 1, paths_.end(), known)) push(row, token, -1, 0);
      }
    }
    return !open_.empty();
  }

  std::span<EvidenceReader* const> readers_;
  const Gbdt* gbdt_ = nullptr;
  std::span<const ProposedNode> proposals_;
  CollectorLimits limits_{};
  std::vector<Token> text_;
  HitRates hit_rates_;
  PromptLookup lookup_;  // empty: the text stays with the session
  std::vector<PathEnd> paths_;
  std::vector<Node> nodes_;
  std::vector<SourceEvidence> source_evidence_;  // of each path that was read
  std::size_t readings_ = 0;                     // of those, in this collect_evidence
  Frontier<Open> open_;
  std::vector<Open> ahead_;  // what was taken out of it to be read
  std::vector<std::vector<Token>> tails_;
  std::uint32_t number_ = 0;
  std::vector<EvidenceReader::Child> children_;
  CandidateTable candidates_;
  std::vector<Token> named_;
};

}  // namespace rest_store
