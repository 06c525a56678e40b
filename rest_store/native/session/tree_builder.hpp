// Builds the draft trees of one generation: best-first over the candidates of all sources, by
// score. Learns from the tokens that the target model accepted.
//
// THE SCORE OF A NODE is the probability that the target model accepts the whole path to it.
//
// The naive way: take the candidates with the greatest probability of coming next. A
// counter-example: a name follows the context in one of ten cases, and "(" always follows the name.
// The "(" has probability 1, but its place in the tree pays in one of ten cases. A second candidate
// after the context, with probability 0.3, pays three times as often.
//
// The rule: a node's score is its parent's score times the probability that it comes next
// (acceptance.hpp, then corrected by match_experience.hpp and by a filter); the context has score
// 1. So no node has a greater score than its parent. Of all candidates in sight, the search takes
// the one with the greatest score, again and again. Parents come before their children, and the N
// nodes taken are the N with the greatest scores. The sum of their scores is the number of draft
// tokens that are accepted on average, and no other tree of N nodes has a greater sum.
//
// HOW A TREE GROWS. The context is the root of the tree, node -1. Expanding a node, or the root,
// means scoring the candidates for the token after it. These enter the frontier, and the best one
// in the frontier becomes the next node. An expansion takes three calls: request() names the
// evidence of datastores that it needs, look_up() reads the session's own memory, and expand()
// scores all of that and chooses the node that is expanded next. build() makes these calls for one
// builder, batch.hpp for several at once.
#pragma once

#include <memory>

#include "session/acceptance.hpp"
#include "session/draft_nodes.hpp"
#include "session/frontier.hpp"

namespace rest_store {

constexpr std::size_t kWindow = 64;         // last tokens of a context that sources read
constexpr std::size_t kMaxSuffixTail = 32;  // context tokens in a request for the root
constexpr std::uint32_t kMaxTreeDepth = 48;
constexpr float kMinScore = 1e-9F;  // trees and chains take no candidate with a lower score
// A chain ends at a node with a lower score.
constexpr float kMinChainScore = 0.005F;
// From this score of a node on, all candidates after it are scored, not the first few alone.
constexpr float kProbable = 0.3F;
// In trees of at most so many nodes, the first few candidates are enough everywhere.
constexpr std::size_t kSmallTree = 16;

// Rows for fitting a calibration: one for each candidate of each node that an accepted path leads
// through.
struct Recorded {
  std::vector<float> features;       // kFeatures of each row
  std::vector<std::uint8_t> labels;  // of each row: 1 if the candidate came next, else 0
  std::vector<std::uint32_t> ends;   // the row behind those of each node
};

// Buffers of a step, reused by the next. One step uses them at a time; it may be a step of several
// builders.
struct DraftScratch {
  EvidenceReader::Scratch evidence;
  std::vector<EvidenceReader::Request> requests;
  CandidateTable candidates;
  IntegerTrees::Scratch trees;
};

// A candidate in the arguments of a filter.
struct FilteredCandidate {
  Token token;
  std::uint32_t origins;
  float probability;  // that it comes next
};

// The origin of candidates that a filter proposes.
constexpr std::uint32_t kFilterOrigin = std::uint32_t{1} << 31;

// Rules for the tokens after each node of a tree, such as those of a grammar.
class CandidateFilter {
 public:
  virtual ~CandidateFilter() = default;

  // Remove candidates, change their probabilities, or add others (kFilterOrigin). Return whether
  // anything was changed.
  //
  // Called for the context (`node` and `parent` are -1, `token` is 0), and for each node that is
  // expanded, after its parent. `token` is the node's. An exception passes through expand().
  virtual bool filter(std::int32_t node, std::int32_t parent, Token token,
                      std::vector<FilteredCandidate>& candidates) = 0;
};

// Owns the text of one generation. `trees`, and all sources and filters that are passed to it,
// outlive it. Not thread-safe.
class TreeBuilder {
 public:
  explicit TreeBuilder(const FittedTrees& trees) : trees_(trees) {}

  // These are called before begin_text(), add_reference() once for each reference.
  void use_lookup() { uses_lookup_ = true; }
  void use_recycled(RecycledLogits& recycled) { recycled_ = &recycled; }
  void use_filter(CandidateFilter& filter) { filter_ = &filter; }
  void learn_online(bool on) { learns_online_ = on; }
  void add_reference(std::span<const Token> tokens) { lookup_.add_reference(tokens); }
  void begin_text(std::span<const Token> tokens) {
    lookup_.append(tokens);
    lookup_.end_prompt();
  }

  // Stores are datastores, numbered in the order of adding; there are at most kMaxStores. The
  // numbers of later ones fall by one when a store is removed. The statistics of the others stay.
  // set_reader() replaces the reader of a store whose shards have changed.
  void add_store(EvidenceReader& reader) {
    stores_.push_back(&reader);
    hit_rates_.stores.emplace_back();
  }
  void set_reader(std::size_t store, EvidenceReader& reader) { stores_[store] = &reader; }
  void remove_store(std::size_t store) {
    forget();
    stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(store));
    hit_rates_.stores.erase(hit_rates_.stores.begin() + static_cast<std::ptrdiff_t>(store));
  }
  std::size_t store_count() const { return stores_.size(); }

  // The prompt and the output so far, without references; valid until the text grows.
  std::span<const Token> text() const { return lookup_.text(); }
  std::size_t longest_probe() const { return lookup_.longest_probe(); }

  // The online part of the calibration: the next build() reads it, and accept() changes it.
  const OnlineCalibration& online() const { return online_; }
  void set_online(const OnlineCalibration& online) { online_ = online; }
  bool learns_online() const { return learns_online_; }

  // The nodes of the latest draft, in the order of verification; of a lookahead, in the order of
  // paths (draft_nodes.hpp).
  const std::vector<DraftNode>& nodes() const { return nodes_; }

  // Build a draft of at most `options.max_nodes` nodes. A tree takes nodes by descending score,
  // parents before children. A chain follows the likeliest candidate each time. Searching for the
  // path with the greatest sum led to fewer accepted tokens: it prefers overestimated paths.
  void build(const DraftOptions& options) {
    if (!scratch_) scratch_ = std::make_unique<DraftScratch>();
    for (begin(options); unfinished(); expand(*scratch_)) {
      scratch_->requests.clear();
      request(scratch_->requests);
      EvidenceReader::read(scratch_->requests, scratch_->evidence, [&] { look_up(); });
    }
  }

  // The same in steps, so that the evidence of several builders is read together. Call begin();
  // then, while unfinished(): request(), read the evidence, look_up(), expand(). The spans of
  // `options.costs` have to live until the last step.
  void begin(const DraftOptions& options) {
    options_ = options;
    has_live_ = std::any_of(stores_.begin(), stores_.end(),
                            [](const EvidenceReader* reader) { return reader->live(); });
    // Until they hold a row, recycled logits propose nothing.
    has_logits_ = recycled_ != nullptr && recycled_->size() > 0;
    nodes_.clear();
    frontier_.clear();
    pushed_ = 0;
    expansions_ = 0;
    expansion_of_.clear();
    path_of_.clear();
    chain_ends_ = 0;
    verified_.assign(options.verified.begin(), options.verified.end());
    features_.clear();
    candidates_.clear();
    match_odds_ = online_.matches.odds_ratios(matches_of_text_);
    next_ = text().empty() ? kNowhere : kContext;
  }

  bool unfinished() const { return next_ != kNowhere; }

  // Append a request to each store for its evidence about the token after the node that is expanded
  // next. The requests point into this builder; they are valid until expand().
  void request(std::vector<EvidenceReader::Request>& requests) {
    const std::span<const Token> tail = tail_of(next_);
    if (uses_lookup_) lookup_.prefetch_for(tail);
    if (expansions_ == source_evidence_.size()) source_evidence_.emplace_back();
    SourceEvidence& sources = source_evidence_[expansions_];
    sources.stores.resize(stores_.size());
    sources.live.resize(stores_.size());
    const SourceEvidence* above =
        next_ == kContext
            ? nullptr
            : &source_evidence_[static_cast<std::size_t>(expansion_of(node_at(next_).parent))];
    // `frozen` was fitted without live stores: for it, a live store is one more frozen one.
    const bool has_live_columns = records_ || &trees() != &trees_.frozen;
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      sources.live[i] = stores_[i]->live() && has_live_columns;
      const Evidence* parent = above == nullptr ? nullptr : &above->stores[i];
      std::size_t longest = kMaxSuffixTail;
      if (parent != nullptr) {
        // No match is longer than the parent's and one more token.
        const BackoffLevel* level = parent->longest();
        longest = std::max<std::size_t>(level == nullptr ? 0 : level->length + 1, kShort);
      }
      requests.push_back(
          {stores_[i], parent, tail.last(std::min(tail.size(), longest)), &sources.stores[i]});
    }
  }

  // Look that token up in the text and in the recycled logits.
  void look_up() {
    // The requests point to the same tokens, in the same buffer.
    const std::span<const Token> tail = tail_of(next_);
    SourceEvidence& sources = source_evidence_[expansions_];
    if (uses_lookup_) lookup_.find(tail, sources.lookup);
    if (recycled_ != nullptr) sources.recycled = recycled_->find(tail);
  }

  // Score the candidates for that token, and choose the node that is expanded next.
  void expand(DraftScratch& scratch) {
    const std::size_t first = candidates_.size();
    score_candidates(scratch);
    switch (options_.shape) {
      case Shape::kTree:
        return grow_tree(first);
      case Shape::kChain:
        return grow_chain(first);
      case Shape::kLookahead:
        return grow_lookahead(first);
    }
  }

  // Learn that `likely` are the most likely tokens after `node`, or after the first `length` tokens
  // of the text.
  void learn_likely_after(std::int32_t node, const TopTokens& likely) {
    if (recycled_ != nullptr) recycled_->learn(tail_of(node), likely);
  }
  void learn_likely_within(std::size_t length, const TopTokens& likely) {
    const std::span<const Token> before = text().first(length);
    if (recycled_ != nullptr)
      recycled_->learn(before.last(std::min(length, kRecycledOrders)), likely);
  }

  // Append the tokens that the target model produced, and learn from them. Returns how many of them
  // are in the draft. Throws std::bad_alloc, with the text as it was, if there is not enough memory
  // for it.
  std::size_t accept(std::span<const Token> tokens) {
    lookup_.append(tokens);  // first: it may fail
    std::int32_t node = kContext;
    const bool drafted = expansions_ > 0;
    bool on_tree = drafted;
    std::size_t depth = 0;
    for (std::size_t i = 0; i < tokens.size() && on_tree; ++i) {
      learn(node, tokens[i]);
      node = child_of(node, tokens[i]);
      on_tree = node != kNowhere;
      // Of a lookahead, only the draft that was verified meanwhile can have been accepted.
      depth += on_tree && (options_.shape != Shape::kLookahead ||
                           (i < verified_.size() && tokens[i] == verified_[i]));
    }
    if (drafted) mean_accepted_ += kLatestShare * (static_cast<float>(depth) - mean_accepted_);
    forget();
    return depth;
  }

  // Discard the tree: as if none had been built since the last accept().
  void forget() {
    expansions_ = 0;
    nodes_.clear();
  }

  // Whether accept() records rows for fitting a calibration.
  void record(bool on) { records_ = on; }
  // The rows recorded since the last call.
  Recorded take_recorded() { return std::exchange(recorded_, {}); }

 private:
  static constexpr std::int32_t kContext = -1, kNowhere = -2;  // instead of a node
  static constexpr std::int32_t kOfVerified = -1;  // instead of the first node of a path
  // The probability of a verified token that no source proposed.
  static constexpr float kUnproposed = 0.3F;
  static constexpr float kLatestShare = 0.2F;  // of the latest step in the mean accepted length

  // A candidate that was scored.
  struct Candidate {
    std::uint32_t expansion;  // of the node that it follows
    Token token;
    std::uint32_t origins;
    float probability;   // that it comes next
    float score;         // probability that the path up to it is accepted
    bool is_calibrated;  // whether `probability` is the calibration's, and no filter's
  };

  // A token that continues a long match.
  struct ContinuedMatch {
    std::size_t row;  // of the token in the table of candidates
    Token token;
    std::uint32_t length;
    std::size_t match_class;
    float probability;  // that it comes next, by the trees
  };

  const DraftNode& node_at(std::int32_t node) const {
    return nodes_[static_cast<std::size_t>(node)];
  }

  float score_of(std::int32_t node) const { return node < 0 ? 1 : node_at(node).score; }

  // The last tokens of the context and the path to `node`; valid until the next call.
  std::span<const Token> tail_of(std::int32_t node) {
    const std::size_t depth = node < 0 ? 0 : node_at(node).depth;
    const std::size_t from = std::min(text().size(), kWindow);
    tail_.resize(from + depth);
    std::copy(text().end() - static_cast<std::ptrdiff_t>(from), text().end(), tail_.begin());
    for (std::size_t i = tail_.size(); node >= 0; node = node_at(node).parent)
      tail_[--i] = node_at(node).token;
    return std::span<const Token>(tail_).last(std::min(tail_.size(), kWindow));
  }

  // The trees that score this step.
  const IntegerTrees& trees() const { return trees_.for_step(has_live_, has_logits_); }

  // The expansion of `node`; -1: not expanded.
  std::int32_t expansion_of(std::int32_t node) const {
    return node < 0 ? 0 : expansion_of_[static_cast<std::size_t>(node)];
  }

  // Score the candidates after the node that is expanded next, and append them.
  void score_candidates(DraftScratch& scratch) {
    const SourceEvidence& sources = source_evidence_[expansions_];
    const NodeFeatures features = features_of_next();
    if (next_ != kContext)
      expansion_of_[static_cast<std::size_t>(next_)] = static_cast<std::int32_t>(expansions_);
    CandidateTable& candidates = scratch.candidates;
    candidates.fill(sources, hit_rates_, features, lookup_, scores_many() ? kCandidates : kLanes);
    std::array<float, kCandidates> probabilities =
        acceptance_probabilities(candidates, trees(), online_, scratch.trees);
    follow_matches(sources, candidates, probabilities);
    filtered_.clear();
    for (std::size_t row = 0; row < candidates.size(); ++row)
      filtered_.push_back({candidates.token(row), candidates.origins(row), probabilities[row]});
    if (records_) record_rows(candidates);
    const bool is_filtered = filter_ != nullptr && !records_ && apply_filter();
    if (is_filtered) continued_[expansions_].clear();  // a filter decides better than experience
    const float parent_score = score_of(next_);
    for (const FilteredCandidate& candidate : filtered_) {
      // The score: the parent's score times the probability.
      const float score = parent_score * candidate.probability;
      candidates_.push_back({static_cast<std::uint32_t>(expansions_), candidate.token,
                             candidate.origins, candidate.probability, score, !is_filtered});
    }
    ++expansions_;
  }

  // The features of the node that is expanded next.
  NodeFeatures features_of_next() const {
    NodeFeatures features;
    features.mean_accepted = mean_accepted_;
    if (next_ == kContext) return features;
    const DraftNode& node = node_at(next_);
    features.depth = static_cast<float>(node.depth);
    features.score = node.score;
    features.probability = node.probability;
    if (const std::int32_t first = path_of(next_); first >= 0) as_if_written(first, features);
    return features;
  }

  // Whether many candidates after the node that is expanded next may matter. Few do after an
  // unlikely node, in a small tree, and where the likeliest candidate alone is followed: in a
  // chain, and on a path of a lookahead, which is a chain.
  bool scores_many() const {
    return score_of(next_) >= kProbable && options_.max_nodes > kSmallTree &&
           options_.shape != Shape::kChain && path_of(next_) == kOfVerified;
  }

  // Append the features of the candidates at hand to `features_`.
  void record_rows(const CandidateTable& candidates) {
    for (std::size_t row = 0; row < candidates.size(); ++row)
      for (std::size_t i = 0; i < kFeatures; ++i) features_.push_back(candidates.feature(row, i));
  }

  // Change the features of the node that is expanded next to those that it will have once `first`
  // has been written. `first` is above that node, or is the same.
  void as_if_written(std::int32_t first, NodeFeatures& features) const {
    features.depth -= static_cast<float>(node_at(first).depth);
    features.score /= node_at(first).score;
    if (first == next_) features.probability = 1;
  }

  // Multiply the odds of the tokens that continue long matches by experience with such tokens
  // (match_experience.hpp). Then divide by the new sum, in which "none of these" takes part: the
  // probabilities of all candidates and of that summed up to 1.
  void follow_matches(const SourceEvidence& sources, const CandidateTable& candidates,
                      std::array<float, kCandidates>& probabilities) {
    if (expansions_ == continued_.size()) continued_.emplace_back();
    std::vector<ContinuedMatch>& continued = continued_[expansions_];
    continued.clear();
    if (const std::int64_t best = sources.best_of_lookup(); best >= 0)
      follow(MatchKind::kLookup, sources.lookup.length, best, candidates, continued);
    for (std::size_t i = 0; i < stores_.size(); ++i)
      if (const BackoffLevel* level = sources.stores[i].longest())
        follow(stores_[i]->live() ? MatchKind::kLive : MatchKind::kFrozen, level->length,
               sources.best_of_store(i), candidates, continued);
    float sum = 1;
    for (ContinuedMatch& match : continued) {
      match.probability = probabilities[match.row];
      sum += (match_odds_[match.match_class] - 1) * match.probability;
    }
    if (continued.empty()) return;
    for (const ContinuedMatch& match : continued)
      probabilities[match.row] *= match_odds_[match.match_class];
    for (std::size_t row = 0; row < candidates.size(); ++row) probabilities[row] /= sum;
  }

  // Add `token`, which continues a match of `length` tokens, to `continued`: if the match is long,
  // and if the token continues no longer one. Nothing is added for -1 or for a token that is not
  // among the candidates.
  void follow(MatchKind kind, std::uint32_t length, std::int64_t token,
              const CandidateTable& candidates, std::vector<ContinuedMatch>& continued) const {
    const std::size_t match_class = class_of_match(kind, length);
    if (match_class == kNoClass) return;
    std::size_t row = 0;
    while (row < candidates.size() && candidates.token(row) != token) ++row;
    if (row == candidates.size()) return;
    const auto same = std::find_if(continued.begin(), continued.end(),
                                   [&](const ContinuedMatch& other) { return other.row == row; });
    const ContinuedMatch match{row, candidates.token(row), length, match_class, 0};
    if (same == continued.end()) continued.push_back(match);
    else if (same->length < length) *same = match;
  }

  // Have the filter narrow the candidates of the node that is expanded next; return whether it
  // changed any.
  bool apply_filter() {
    if (next_ == kContext) return filter_->filter(kContext, kContext, 0, filtered_);
    const DraftNode& node = node_at(next_);
    return filter_->filter(next_, node.parent, node.token, filtered_);
  }

  // Make a candidate the next node, below `parent`.
  void take(std::size_t index, std::int32_t parent) {
    const Candidate& candidate = candidates_[index];
    const std::uint32_t depth = parent < 0 ? 1 : node_at(parent).depth + 1;
    nodes_.push_back({candidate.token, parent, depth, candidate.origins, candidate.score,
                      candidate.probability});
    expansion_of_.push_back(-1);
  }

  // The candidate with the greatest score of those from `first` on, of equals the first;
  // candidates_.size(): there is none.
  std::size_t likeliest_from(std::size_t first) const {
    const auto likeliest = std::max_element(
        candidates_.begin() + static_cast<std::ptrdiff_t>(first), candidates_.end(),
        [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
    return static_cast<std::size_t>(likeliest - candidates_.begin());
  }

  // Push the candidates from `first` on. Then take the best of all in the frontier, again and
  // again, up to a node that has to be expanded or the end of the tree.
  void grow_tree(std::size_t first) {
    for (std::size_t i = first; i < candidates_.size(); ++i)
      if (const float score = candidates_[i].score;
          score >= std::max(frontier_.cutoff(), kMinScore))
        frontier_.push({score, pushed_++, i, next_});
    while (nodes_.size() < options_.max_nodes && !frontier_.empty()) {
      const OpenCandidate best = frontier_.pop();
      take(best.candidate, best.parent);
      if (const DraftNode& node = nodes_.back();
          node.depth < kMaxTreeDepth &&
          (records_ || frontier_.may_contribute(node.score, options_.max_nodes - nodes_.size()))) {
        next_ = static_cast<std::int32_t>(nodes_.size()) - 1;
        return;
      }
    }
    finish();
  }

  // Take the likeliest of the candidates from `first` on.
  void grow_chain(std::size_t first) {
    const std::size_t likeliest = likeliest_from(first);
    const bool is_likely =
        likeliest < candidates_.size() && candidates_[likeliest].score >= kMinScore;
    if (!is_likely || nodes_.size() == options_.max_nodes) return finish();
    take(likeliest, next_);
    next_ = static_cast<std::int32_t>(nodes_.size()) - 1;
    if (candidates_[likeliest].score < kMinChainScore ||
        nodes_.size() == std::min<std::size_t>(options_.max_nodes, kMaxTreeDepth))
      finish();
  }

  // A lookahead has the verified draft, the tokens that may follow each node of it, and below each
  // of these tokens one chain. Push the candidates from `first` on: all of them after the context
  // and after a node of the verified draft, elsewhere the likeliest alone. Then take the best of
  // all in the frontier, up to a node that has to be expanded or the end of the lookahead.
  void grow_lookahead(std::size_t first) {
    if (path_of(next_) < 0) {
      propose_verified(first);
      for (std::size_t i = first; i < candidates_.size(); ++i) push_ahead(i);
    } else if (first < candidates_.size()) {
      push_ahead(likeliest_from(first));
      ++chain_ends_;
    }
    while (nodes_.size() + chain_ends_ < options_.max_nodes && !frontier_.empty()) {
      const OpenCandidate best = frontier_.pop();
      const bool leaves = path_of(best.parent) < 0 && !is_verified(best);
      // No draft token would fit after the last node.
      if (leaves && nodes_.size() + chain_ends_ + 1 == options_.max_nodes) continue;
      take_ahead(best);
      const auto node = static_cast<std::int32_t>(nodes_.size()) - 1;
      const std::int32_t path = path_of(node);
      const std::uint32_t depth = node_at(node).depth;
      if (depth == kMaxTreeDepth || (path >= 0 && depth - node_at(path).depth == options_.length))
        continue;
      next_ = node;
      return;
    }
    // Of the candidates that are left, only those that continue a chain are draft tokens.
    while (!frontier_.empty())
      if (const OpenCandidate last = frontier_.pop(); path_of(last.parent) >= 0) take_ahead(last);
    finish();
  }

  // Make sure that the token that is verified after the node that was expanded is among the
  // candidates from `first` on.
  void propose_verified(std::size_t first) {
    const std::size_t depth = next_ == kContext ? 0 : node_at(next_).depth;
    if (depth == verified_.size() || filter_ != nullptr) return;
    for (std::size_t i = first; i < candidates_.size(); ++i)
      if (candidates_[i].token == verified_[depth]) return;
    candidates_.push_back({static_cast<std::uint32_t>(expansions_ - 1), verified_[depth], 0,
                           kUnproposed, score_of(next_) * kUnproposed, false});
  }

  void push_ahead(std::size_t candidate) {
    frontier_.push({candidates_[candidate].score, pushed_++, candidate, next_});
  }

  // Make a candidate the next node of a lookahead.
  void take_ahead(const OpenCandidate& open) {
    const std::int32_t path = path_of(open.parent);
    const std::int32_t own =
        is_verified(open) ? kOfVerified : static_cast<std::int32_t>(nodes_.size());
    take(open.candidate, open.parent);
    path_of_.push_back(path >= 0 ? path : own);
    if (path >= 0) --chain_ends_;
  }

  // Whether a candidate is the next token of the verified draft.
  bool is_verified(const OpenCandidate& open) const {
    const std::size_t depth = open.parent < 0 ? 0 : node_at(open.parent).depth;
    return path_of(open.parent) < 0 && depth < verified_.size() &&
           candidates_[open.candidate].token == verified_[depth];
  }

  // In a lookahead, the first node of the path by which `node` leaves the verified draft;
  // kOfVerified: `node` is in that draft, or is the context. In another draft always kOfVerified.
  std::int32_t path_of(std::int32_t node) const {
    return node < 0 || options_.shape != Shape::kLookahead
               ? kOfVerified
               : path_of_[static_cast<std::size_t>(node)];
  }

  // End the draft: cut it by costs, and put its nodes into their order.
  void finish() {
    next_ = kNowhere;
    if (!options_.costs.empty()) nodes_.resize(pruned_size(nodes_, options_.costs));
    const std::vector<std::int32_t> expansions_before = expansion_of_;
    expansion_of_.resize(nodes_.size());
    const std::vector<std::int32_t> moved_to = options_.shape == Shape::kLookahead
                                                   ? put_in_path_order(nodes_)
                                                   : put_in_verification_order(nodes_);
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      expansion_of_[static_cast<std::size_t>(moved_to[i])] = expansions_before[i];
  }

  // The child of `node` with this token; kNowhere: there is none.
  std::int32_t child_of(std::int32_t node, Token token) const {
    for (std::size_t child = 0; child < nodes_.size(); ++child)
      if (nodes_[child].parent == node && nodes_[child].token == token)
        return static_cast<std::int32_t>(child);
    return kNowhere;
  }

  // Learn that the target model produced `token` after `node`. Nothing is learnt if the node was
  // not expanded.
  void learn(std::int32_t node, Token token) {
    const std::int32_t expansion = expansion_of(node);
    if (expansion < 0) return;
    learn_hit_rates(source_evidence_[static_cast<std::size_t>(expansion)], token);
    learn_candidates(static_cast<std::size_t>(expansion), token);
    if (learns_online_) {
      online_.decay();
      learn_matches(continued_[static_cast<std::size_t>(expansion)], token);
    }
  }

  // Learn of each source with a best candidate whether that was `token`.
  void learn_hit_rates(const SourceEvidence& sources, Token token) {
    const auto right = static_cast<std::int64_t>(token);
    if (const std::int64_t best = sources.best_of_lookup(); best >= 0)
      hit_rates_.lookup.learn(best == right);
    if (const std::int64_t best = sources.best_of_recycled(); best >= 0)
      hit_rates_.recycled.learn(best == right);
    for (std::size_t i = 0; i < stores_.size(); ++i)
      hit_rates_.stores[i].learn(sources.best_of_store(i) == right);
  }

  // Learn of each candidate of an expansion whether it was `token`: online, and as recorded rows.
  void learn_candidates(std::size_t expansion, Token token) {
    const std::size_t recorded_before = recorded_.labels.size();
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const Candidate& candidate = candidates_[i];
      if (candidate.expansion != expansion) continue;
      if (learns_online_ && candidate.is_calibrated)
        online_.learn(candidate.origins, candidate.probability, candidate.token == token);
      if (!records_) continue;
      recorded_.labels.push_back(candidate.token == token);
      const auto first = features_.begin() + static_cast<std::ptrdiff_t>(i * kFeatures);
      recorded_.features.insert(recorded_.features.end(), first, first + kFeatures);
    }
    if (recorded_.labels.size() > recorded_before)
      recorded_.ends.push_back(static_cast<std::uint32_t>(recorded_.labels.size()));
  }

  // Learn of each token that continued a long match whether it was `token`.
  void learn_matches(std::span<const ContinuedMatch> continued, Token token) {
    for (const ContinuedMatch& match : continued) {
      online_.matches.learn(match.match_class, match.probability, match.token == token);
      matches_of_text_.learn(match.match_class, match.probability, match.token == token);
    }
  }

  const FittedTrees& trees_;
  PromptLookup lookup_;  // holds references and text, whether prompt lookup is a source or not
  bool uses_lookup_ = false;
  RecycledLogits* recycled_ = nullptr;
  std::vector<EvidenceReader*> stores_;
  CandidateFilter* filter_ = nullptr;
  bool learns_online_ = true;
  bool records_ = false;
  OnlineCalibration online_;
  MatchExperience matches_of_text_;
  std::array<float, kMatchClasses> match_odds_{};  // of the tree at hand
  bool has_live_ = false;                          // a live store takes part in this step
  bool has_logits_ = false;                        // the recycled logits hold any
  HitRates hit_rates_;
  float mean_accepted_ = 1;

  // The tree and, of each expansion (the context's is the first), the evidence of the sources.
  std::vector<DraftNode> nodes_;
  std::vector<std::int32_t> expansion_of_;  // of each node; -1: not expanded
  Frontier frontier_;
  std::vector<SourceEvidence> source_evidence_;
  std::vector<std::vector<ContinuedMatch>> continued_;  // of each expansion
  DraftOptions options_{};
  std::int32_t next_ = kNowhere;  // the node that is expanded next
  // Of a lookahead: the draft that is verified meanwhile, path_of() of each node, and how many
  // candidates in the frontier continue a chain.
  std::vector<Token> verified_;
  std::vector<std::int32_t> path_of_;
  std::size_t chain_ends_ = 0;
  std::size_t expansions_ = 0;
  std::uint32_t pushed_ = 0;
  std::vector<Candidate> candidates_;        // the candidates of all expansions
  std::vector<FilteredCandidate> filtered_;  // those of the expansion at hand
  std::vector<float> features_;              // of `candidates_`, kFeatures each, if recorded
  Recorded recorded_;

  std::vector<Token> tail_;
  std::unique_ptr<DraftScratch> scratch_;  // of build(): builders of batches need none
};

}  // namespace rest_store
