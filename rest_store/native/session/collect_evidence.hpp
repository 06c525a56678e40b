// Collects the evidence of datastores for a session in another process, along the paths that its draft tree may take.
// The session has more sources than these, so paths are read best-first until the row limit, by what is known here.
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
  std::size_t max_rows;    // paths read, including the context itself
  std::size_t max_suffix;  // of the context, in tokens
  std::size_t max_depth;   // of a path, in tokens
};

// Not thread-safe; keeps its memory between calls.
class EvidenceCollector {
 public:
  // Read what `readers` know after `tail`, the end of a context, and after paths from there.
  void collect(std::span<EvidenceReader* const> readers, const Gbdt& gbdt, std::span<const Token> tail,
               std::span<const ProposedNode> proposals, const CollectorLimits& limits) {
    readers_ = readers;
    gbdt_ = &gbdt;
    proposals_ = proposals;
    limits_ = limits;
    text_.assign(tail.begin(), tail.end());
    hit_rates_.stores.assign(readers.size(), HitRate());
    paths_.clear();
    nodes_.clear();
    frontier_.clear();
    pushed_ = 0;
    readings_ = 0;
    known_rows_ = 0;
    tokens_.assign(text_.begin(), text_.end());
    for (const ProposedNode& proposal : proposals_) tokens_.push_back(proposal.token);
    take({1, 0, 0, -1, -1, 1, read_root()});
    while (paths_.size() < limits.max_rows) {
      if (frontier_.empty() && !push_all_tokens()) return;
      if (frontier_.best().reading < 0) read_ahead();
      take(frontier_.pop());
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
    std::int32_t proposal;  // that ends the same path; -1: none
    float probability;
    std::int32_t reading = -1;  // place of its evidence; -1: not read yet
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

  // Read the best open path, and with it some of the next ones, which will most likely become rows, too.
  void read_ahead() {
    const std::size_t left = limits_.max_rows - paths_.size();
    const std::size_t count = std::min({kAhead, (left + 1) / 2, frontier_.size()});
    ahead_.clear();
    source_evidence_.reserve(readings_ + count);  // children point into it
    tails_.resize(kAhead);
    children_.clear();
    while (ahead_.size() < count) {
      ahead_.push_back(frontier_.pop());
      Open& open = ahead_.back();
      if (open.reading >= 0) continue;
      open.reading = static_cast<std::int32_t>(readings_);
      SourceEvidence& sources = next_reading();
      const SourceEvidence& above = evidence_of(static_cast<std::size_t>(open.parent));
      const std::span<const Token> tail = tail_of(open, tails_[ahead_.size() - 1]);
      for (std::size_t i = 0; i < readers_.size(); ++i)
        children_.push_back({readers_[i], &above.stores[i], tail, &sources.stores[i]});
    }
    EvidenceReader::read(children_);
    for (const Open& open : ahead_) frontier_.push(open);
  }

  // The end of the context and the path of `open`, kept in `tail`.
  std::span<const Token> tail_of(const Open& open, std::vector<Token>& tail) const {
    const std::size_t depth = depth_of(open), from = std::min(text_.size(), limits_.max_suffix);
    tail.assign(text_.end() - static_cast<std::ptrdiff_t>(from), text_.end());
    tail.resize(from + depth);
    std::size_t place = tail.size();
    tail[--place] = open.token;
    for (std::int32_t row = open.parent; row > 0; row = paths_[static_cast<std::size_t>(row)].parent)
      tail[--place] = paths_[static_cast<std::size_t>(row)].token;
    return tail;
  }

  // Make a row of `open`, whose evidence has been read, and push its continuations.
  void take(const Open& open) {
    const std::size_t row = paths_.size();
    const std::size_t depth = depth_of(open);
    paths_.push_back({open.parent, open.token});
    nodes_.push_back({depth, open.score, open.proposal, static_cast<std::size_t>(open.reading)});
    if (depth == limits_.max_depth || !frontier_.may_contribute(open.score, limits_.max_rows - paths_.size())) return;
    NodeFeatures features;
    features.depth = static_cast<float>(depth);
    features.score = open.score;
    features.probability = open.probability;
    candidates_.fill(evidence_of(row), hit_rates_, features, lookup_, open.score >= kProbable ? kCandidates : kLanes);
    std::array<float, kCandidates> probabilities = acceptance_probabilities(candidates_, *gbdt_, OnlineCalibration());
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

  // When no path is open but rows are left: push, after every path, all tokens that are known from anywhere, until
  // there are enough for these rows: all score 0, so they are taken in this order. Whether there were any.
  bool push_all_tokens() {
    if (frontier_.cutoff() > 0) return false;
    for (; known_rows_ < paths_.size(); ++known_rows_)
      for (const Evidence& evidence : evidence_of(known_rows_).stores)
        for (const BackoffLevel& level : evidence.levels)
          for (const Continuation& next : level.next) tokens_.push_back(next.token);
    std::sort(tokens_.begin(), tokens_.end());
    tokens_.erase(std::unique(tokens_.begin(), tokens_.end()), tokens_.end());
    ends_.clear();
    for (std::size_t row = 1; row < paths_.size(); ++row) ends_.emplace_back(paths_[row].parent, paths_[row].token);
    std::sort(ends_.begin(), ends_.end());
    const std::size_t enough = limits_.max_rows - paths_.size();
    for (std::size_t row = 0; row < paths_.size(); ++row) {
      if (nodes_[row].depth == limits_.max_depth) continue;
      for (const Token token : tokens_) {
        if (std::binary_search(ends_.begin(), ends_.end(), std::pair(static_cast<std::int32_t>(row), token))) continue;
        push(row, token, -1, 0);
        if (frontier_.size() == enough) return true;
      }
    }
    return !frontier_.empty();
  }

  std::span<EvidenceReader* const> readers_;
  const Gbdt* gbdt_ = nullptr;
  std::span<const ProposedNode> proposals_;
  CollectorLimits limits_{};
  std::vector<Token> text_;
  HitRates hit_rates_;
  PromptLookup lookup_;  // empty: the session looks up its text itself
  std::vector<PathEnd> paths_;
  std::vector<Node> nodes_;
  std::vector<SourceEvidence> source_evidence_;  // of each path that was read
  std::size_t readings_ = 0;                     // of those, in this call
  Frontier<Open> frontier_;
  std::uint32_t pushed_ = 0;
  std::vector<Open> ahead_;  // taken from the frontier to be read
  std::vector<std::vector<Token>> tails_;
  std::vector<EvidenceReader::Child> children_;
  CandidateTable candidates_;
  std::vector<Token> tokens_;                         // known from anywhere, once they are needed
  std::size_t known_rows_ = 0;                        // whose continuations are among them
  std::vector<std::pair<std::int32_t, Token>> ends_;  // of all paths, sorted
};

}  // namespace rest_store
