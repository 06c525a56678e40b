// One generation's drafting: grows draft trees from all sources, best node first, and learns from what was accepted.
#pragma once

#include "session/acceptance.hpp"
#include "session/evidence_rows.hpp"
#include "session/frontier.hpp"
#include "session/tree_evidence.hpp"

namespace rest_store {

constexpr std::size_t kWindow = 64;     // last tokens of a context that sources read
constexpr float kLeast = 1e-9F;         // a lesser score is not worth a node
constexpr std::uint32_t kDeepest = 48;  // of a draft tree

struct DraftNode {
  Token token;
  std::int32_t parent;  // -1: child of the context
  std::uint32_t depth;
  std::uint32_t origins;
  float score;        // probability that it is accepted
  float probability;  // given that its parent is
};

// A source with counts of continuations: a datastore in this process, or evidence or trees given for this step.
struct CountSource {
  EvidenceReader* reader = nullptr;
  TreeEvidence trees;
  EvidenceRows rows;
  bool present = true;  // in this step

  void given(std::span<const Token> path, Evidence& out) {
    if (rows.empty()) trees.at(path, out);
    else rows.at(path, out);
  }
};

// Not thread-safe: one generation has one. What it points to outlives it.
class TreeBuilder {
 public:
  // `recycled` may be null.
  TreeBuilder(const std::vector<EvidenceReader*>& stores, const Gbdt* gbdt, RecycledLogits* recycled,
              bool use_prompt_lookup)
      : gbdt_(gbdt), recycled_(recycled), use_prompt_lookup_(use_prompt_lookup), stores_(stores.size()) {
    for (std::size_t i = 0; i < stores.size(); ++i) stores_[i].reader = stores[i];
    hit_rates_.stores.resize(stores_.size());
  }

  PromptLookup& lookup() { return lookup_; }
  CountSource& store(std::size_t place) { return stores_[place]; }
  std::size_t store_count() const { return stores_.size(); }
  // One more source that evidence or trees will be given for; returns its place.
  std::size_t add_store() {
    stores_.emplace_back();
    hit_rates_.stores.emplace_back();
    return stores_.size() - 1;
  }
  const std::vector<DraftNode>& nodes() const { return nodes_; }
  OnlineCalibration online;
  bool learns_online = true;  // whether accept() moves the online
  std::size_t longest_suffix =
      16;  // that a datastore is asked for at the root, in tokens; below, the path comes on top

  // Grow a tree of at most `max_nodes` nodes, in the order in which they were taken: never a greater score after a
  // lesser one, parents before children.
  const std::vector<DraftNode>& build(std::size_t max_nodes) {
    max_nodes_ = max_nodes;
    nodes_.clear();
    open_.clear();
    count_ = 0;
    expansions_ = 0;
    expansion_of_.clear();
    features_.clear();
    rows_.clear();
    if (lookup_.tokens().empty()) return nodes_;
    expand(-1);
    while (nodes_.size() < max_nodes && !open_.empty()) {
      const Open best = open_.pop();
      nodes_.push_back({best.token, best.parent,
                        best.parent < 0 ? 1 : nodes_[static_cast<std::size_t>(best.parent)].depth + 1, best.origins,
                        best.score, best.probability});
      expansion_of_.push_back(-1);
      if ((recording_ || open_.may_contribute(best.score, max_nodes - nodes_.size())) && nodes_.back().depth < kDeepest)
        expand(static_cast<std::int32_t>(nodes_.size()) - 1);
    }
    return nodes_;
  }

  // Keep only the first `count` nodes of the tree: the others are not verified.
  void keep(std::size_t count) {
    nodes_.resize(count);
    expansion_of_.resize(count);
  }

  // The last tokens of the context and the path to `node`, which it ends with; valid until the next call.
  std::span<const Token> tail_of(std::int32_t node) {
    const std::vector<Token>& text = lookup_.tokens();
    const std::size_t depth = node < 0 ? 0 : nodes_[static_cast<std::size_t>(node)].depth;
    const std::size_t from = std::min(text.size(), kWindow);
    tail_.resize(from + depth);
    std::copy(text.end() - static_cast<std::ptrdiff_t>(from), text.end(), tail_.begin());
    for (std::size_t place = tail_.size(); node >= 0; node = nodes_[static_cast<std::size_t>(node)].parent)
      tail_[--place] = nodes_[static_cast<std::size_t>(node)].token;
    return std::span<const Token>(tail_).last(std::min(tail_.size(), kWindow));
  }

  // Append the tokens that the target model produced after the context of the last tree, learn from them, and return
  // how many of them the tree foresaw.
  std::size_t accept(std::span<const Token> tokens) {
    std::int32_t node = -1;
    bool on_tree = expansions_ > 0;
    std::size_t depth = 0;
    for (const Token token : tokens) {
      if (on_tree) {
        learn(node, token);
        std::int32_t next = -1;
        for (std::size_t i = 0; i < nodes_.size(); ++i)
          if (nodes_[i].parent == node && nodes_[i].token == token) next = static_cast<std::int32_t>(i);
        on_tree = next >= 0;
        node = next;
        depth += on_tree;
      }
      lookup_.append(token);
    }
    if (expansions_ > 0) momentum_ += 0.2F * (static_cast<float>(depth) - momentum_);
    forget();
    return depth;
  }

  // As if no tree had been grown since the last accept().
  void forget() {
    expansions_ = 0;
    nodes_.clear();
  }

  // For calibration: keep the features of every proposal, and hand out those along the path that was accepted.
  void record(bool on) { recording_ = on; }
  const std::vector<float>& recorded_features() const { return recorded_features_; }
  const std::vector<std::uint8_t>& recorded_labels() const { return recorded_labels_; }
  const std::vector<std::uint32_t>& recorded_ends() const { return recorded_ends_; }
  void forget_recorded() {
    recorded_features_.clear();
    recorded_labels_.clear();
    recorded_ends_.clear();
  }

 private:
  struct Open {
    float score;
    std::uint32_t number;
    Token token;
    std::int32_t parent;
    std::uint32_t origins;
    float probability;
  };
  struct Row {
    std::uint32_t expansion;
    Token token;
    float probability;
    std::uint32_t origins;
  };

  // Ask every datastore about the place that ends in `tail`, `depth` tokens below the root, whose parent's evidence is
  // that of expansion `above`.
  void consult(std::size_t above, std::span<const Token> tail, std::size_t depth, SourceEvidence& sources) {
    children_.clear();
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      CountSource& source = stores_[i];
      if (!source.present) sources.stores[i].clear();
      else if (source.reader == nullptr) source.given(tail.last(depth), sources.stores[i]);
      else if (depth == 0) source.reader->root(tail.last(std::min(tail.size(), longest_suffix)), sources.stores[i]);
      else
        children_.push_back({source.reader, &source_evidence_[above].stores[i],
                             tail.last(std::min(tail.size(), longest_suffix + depth)), &sources.stores[i]});
    }
    EvidenceReader::read(children_);
  }

  void expand(std::int32_t node) {
    const std::span<const Token> tail = tail_of(node);
    if (expansions_ == source_evidence_.size()) source_evidence_.emplace_back();
    SourceEvidence& sources = source_evidence_[expansions_];
    sources.stores.resize(stores_.size());
    sources.present.resize(stores_.size());
    for (std::size_t i = 0; i < stores_.size(); ++i) sources.present[i] = stores_[i].present;
    if (use_prompt_lookup_) lookup_.find(tail, sources.lookup);
    if (recycled_ != nullptr) sources.rows = recycled_->find(tail);
    Place place;
    place.momentum = momentum_;
    if (node < 0) {
      root_ = expansions_;
      consult(root_, tail, 0, sources);
    } else {
      const DraftNode& own = nodes_[static_cast<std::size_t>(node)];
      const std::size_t above =
          own.parent < 0 ? root_ : static_cast<std::size_t>(expansion_of_[static_cast<std::size_t>(own.parent)]);
      consult(above, tail, own.depth, sources);
      place.depth = static_cast<float>(own.depth);
      place.score = own.score;
      place.probability = own.probability;
      expansion_of_[static_cast<std::size_t>(node)] = static_cast<std::int32_t>(expansions_);
    }
    candidates_.gather(sources, hit_rates_, place, lookup_,
                       place.score >= 0.3F && max_nodes_ > 16 ? kCandidates : kLanes);
    const std::array<float, kCandidates> probabilities = acceptance_probabilities(candidates_, gbdt_, online);
    for (std::size_t row = 0; row < candidates_.size(); ++row) {
      const float probability = probabilities[row];
      if (const float score = place.score * probability; score >= std::max(open_.bar(), kLeast))
        open_.push({score, count_++, candidates_.token(row), node, candidates_.origins(row), probability});
      rows_.push_back(
          {static_cast<std::uint32_t>(expansions_), candidates_.token(row), probability, candidates_.origins(row)});
      if (recording_) {
        for (std::size_t feature = 0; feature < kFeatures; ++feature)
          features_.push_back(candidates_.feature(row, feature));
      }
    }
    ++expansions_;
  }

  // `token` came after `node`.
  void learn(std::int32_t node, Token token) {
    const std::int32_t expansion =
        node < 0 ? static_cast<std::int32_t>(root_) : expansion_of_[static_cast<std::size_t>(node)];
    if (expansion < 0) return;
    const SourceEvidence& sources = source_evidence_[static_cast<std::size_t>(expansion)];
    const auto right = static_cast<std::int64_t>(token);
    if (const std::int64_t guess = sources.lookup_guess(); guess >= 0) hit_rates_.lookup.learn(guess == right);
    if (const std::int64_t guess = sources.recycled_guess(); guess >= 0) hit_rates_.recycled.learn(guess == right);
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      if (const std::int64_t guess = sources.store_guess(i); stores_[i].present)
        hit_rates_.stores[i].learn(guess == right);
    }
    if (learns_online) {
      for (const Row& row : rows_)
        if (row.expansion == static_cast<std::uint32_t>(expansion))
          online.learn(row.origins, row.probability, row.token == token);
      online.settle();
    }
    if (!recording_) return;
    const std::size_t before = recorded_labels_.size();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].expansion != static_cast<std::uint32_t>(expansion)) continue;
      recorded_labels_.push_back(rows_[i].token == token);
      const auto first = features_.begin() + static_cast<std::ptrdiff_t>(i * kFeatures);
      recorded_features_.insert(recorded_features_.end(), first, first + kFeatures);
    }
    if (recorded_labels_.size() > before) recorded_ends_.push_back(static_cast<std::uint32_t>(recorded_labels_.size()));
  }

  const Gbdt* gbdt_;
  RecycledLogits* recycled_;
  bool use_prompt_lookup_;
  std::vector<CountSource> stores_;
  PromptLookup lookup_;
  HitRates hit_rates_;
  float momentum_ = 1;
  bool recording_ = false;

  std::vector<DraftNode> nodes_;
  std::vector<std::int32_t> expansion_of_;  // of each node; -1: not expanded
  Frontier<Open> open_;
  std::vector<SourceEvidence> source_evidence_;  // of each expansion
  std::size_t expansions_ = 0, root_ = 0, max_nodes_ = 0;
  std::uint32_t count_ = 0;
  std::vector<Token> tail_;
  std::vector<EvidenceReader::Child> children_;
  CandidateTable candidates_;

  std::vector<Row> rows_;
  std::vector<float> features_, recorded_features_;
  std::vector<std::uint8_t> recorded_labels_;
  std::vector<std::uint32_t> recorded_ends_;
};

}  // namespace rest_store
