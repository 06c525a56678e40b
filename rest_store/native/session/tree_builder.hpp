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

struct GrownNode {
  Token token;
  std::int32_t parent;  // -1: child of the context
  std::uint32_t depth;
  std::uint32_t origins;
  float score;   // chance that it is accepted
  float chance;  // given that its parent is
};

// A source with counts of continuations: a datastore in this process, or evidence or trees given for this step.
struct CountedSource {
  EvidenceReader* reader = nullptr;
  Grove grove;
  EvidenceRows rows;
  bool present = true;  // in this step

  void given(std::span<const Token> path, Evidence& out) {
    if (rows.empty()) grove.at(path, out);
    else rows.at(path, out);
  }
};

// Not thread-safe: one generation has one. What it points to outlives it.
class Growth {
 public:
  // `recycled` may be null.
  Growth(const std::vector<EvidenceReader*>& stores, const Forest* forest, Recycled* recycled, bool use_echoes)
      : forest_(forest), recycled_(recycled), use_echoes_(use_echoes), stores_(stores.size()) {
    for (std::size_t i = 0; i < stores.size(); ++i) stores_[i].reader = stores[i];
    trusts_.stores.resize(stores_.size());
  }

  History& history() { return history_; }
  CountedSource& store(std::size_t place) { return stores_[place]; }
  std::size_t store_count() const { return stores_.size(); }
  // One more source that evidence or trees will be given for; returns its place.
  std::size_t add_store() {
    stores_.emplace_back();
    trusts_.stores.emplace_back();
    return stores_.size() - 1;
  }
  const std::vector<GrownNode>& nodes() const { return nodes_; }
  Correction correction;
  bool corrects = true;  // whether accept() moves the correction
  std::size_t longest_suffix =
      16;  // that a datastore is asked for at the root, in tokens; below, the path comes on top

  // Grow a tree of at most `max_nodes` nodes, in the order in which they were taken: never a greater score after a
  // lesser one, parents before children.
  const std::vector<GrownNode>& grow(std::size_t max_nodes) {
    max_nodes_ = max_nodes;
    nodes_.clear();
    open_.clear();
    count_ = 0;
    expansions_ = 0;
    expansion_of_.clear();
    facts_.clear();
    rows_.clear();
    if (history_.tokens().empty()) return nodes_;
    expand(-1);
    while (nodes_.size() < max_nodes && !open_.empty()) {
      const Open best = open_.pop();
      nodes_.push_back({best.token, best.parent,
                        best.parent < 0 ? 1 : nodes_[static_cast<std::size_t>(best.parent)].depth + 1, best.origins,
                        best.score, best.chance});
      expansion_of_.push_back(-1);
      if ((recording_ || open_.worth_following(best.score, max_nodes - nodes_.size())) &&
          nodes_.back().depth < kDeepest)
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
    const std::vector<Token>& text = history_.tokens();
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
      history_.append(token);
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

  // For calibration: keep the facts of every proposal, and hand out those along the path that was accepted.
  void record(bool on) { recording_ = on; }
  const std::vector<float>& recorded_facts() const { return recorded_facts_; }
  const std::vector<std::uint8_t>& recorded_labels() const { return recorded_labels_; }
  const std::vector<std::uint32_t>& recorded_ends() const { return recorded_ends_; }
  void forget_recorded() {
    recorded_facts_.clear();
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
    float chance;
  };
  struct Row {
    std::uint32_t expansion;
    Token token;
    float chance;
    std::uint32_t origins;
  };

  // Ask every datastore about the place that ends in `tail`, `depth` tokens below the root, whose parent's evidence is
  // that of expansion `above`.
  void consult(std::size_t above, std::span<const Token> tail, std::size_t depth, Opinions& opinions) {
    children_.clear();
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      CountedSource& source = stores_[i];
      if (!source.present) opinions.stores[i].clear();
      else if (source.reader == nullptr) source.given(tail.last(depth), opinions.stores[i]);
      else if (depth == 0) source.reader->root(tail.last(std::min(tail.size(), longest_suffix)), opinions.stores[i]);
      else
        children_.push_back({source.reader, &opinions_[above].stores[i],
                             tail.last(std::min(tail.size(), longest_suffix + depth)), &opinions.stores[i]});
    }
    EvidenceReader::read(children_);
  }

  void expand(std::int32_t node) {
    const std::span<const Token> tail = tail_of(node);
    if (expansions_ == opinions_.size()) opinions_.emplace_back();
    Opinions& opinions = opinions_[expansions_];
    opinions.stores.resize(stores_.size());
    opinions.present.resize(stores_.size());
    for (std::size_t i = 0; i < stores_.size(); ++i) opinions.present[i] = stores_[i].present;
    if (use_echoes_) history_.find(tail, opinions.echoes);
    if (recycled_ != nullptr) opinions.rows = recycled_->find(tail);
    Place place;
    place.momentum = momentum_;
    if (node < 0) {
      root_ = expansions_;
      consult(root_, tail, 0, opinions);
    } else {
      const GrownNode& own = nodes_[static_cast<std::size_t>(node)];
      const std::size_t above =
          own.parent < 0 ? root_ : static_cast<std::size_t>(expansion_of_[static_cast<std::size_t>(own.parent)]);
      consult(above, tail, own.depth, opinions);
      place.depth = static_cast<float>(own.depth);
      place.score = own.score;
      place.chance = own.chance;
      expansion_of_[static_cast<std::size_t>(node)] = static_cast<std::int32_t>(expansions_);
    }
    proposals_.gather(opinions, trusts_, place, history_, place.score >= 0.3F && max_nodes_ > 16 ? kProposals : kLanes);
    const std::array<float, kProposals> chances = chances_of(proposals_, forest_, correction);
    for (std::size_t row = 0; row < proposals_.size(); ++row) {
      const float chance = chances[row];
      if (const float score = place.score * chance; score >= std::max(open_.bar(), kLeast))
        open_.push({score, count_++, proposals_.token(row), node, proposals_.origins(row), chance});
      rows_.push_back(
          {static_cast<std::uint32_t>(expansions_), proposals_.token(row), chance, proposals_.origins(row)});
      if (recording_) {
        for (std::size_t fact = 0; fact < kFacts; ++fact) facts_.push_back(proposals_.fact(row, fact));
      }
    }
    ++expansions_;
  }

  // `token` came after `node`.
  void learn(std::int32_t node, Token token) {
    const std::int32_t expansion =
        node < 0 ? static_cast<std::int32_t>(root_) : expansion_of_[static_cast<std::size_t>(node)];
    if (expansion < 0) return;
    const Opinions& opinions = opinions_[static_cast<std::size_t>(expansion)];
    const auto right = static_cast<std::int64_t>(token);
    if (const std::int64_t guess = opinions.echo_guess(); guess >= 0) trusts_.echo.learn(guess == right);
    if (const std::int64_t guess = opinions.rank_guess(); guess >= 0) trusts_.rank.learn(guess == right);
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      if (const std::int64_t guess = opinions.store_guess(i); stores_[i].present)
        trusts_.stores[i].learn(guess == right);
    }
    if (corrects) {
      for (const Row& row : rows_)
        if (row.expansion == static_cast<std::uint32_t>(expansion))
          correction.learn(row.origins, row.chance, row.token == token);
      correction.settle();
    }
    if (!recording_) return;
    const std::size_t before = recorded_labels_.size();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].expansion != static_cast<std::uint32_t>(expansion)) continue;
      recorded_labels_.push_back(rows_[i].token == token);
      const auto first = facts_.begin() + static_cast<std::ptrdiff_t>(i * kFacts);
      recorded_facts_.insert(recorded_facts_.end(), first, first + kFacts);
    }
    if (recorded_labels_.size() > before) recorded_ends_.push_back(static_cast<std::uint32_t>(recorded_labels_.size()));
  }

  const Forest* forest_;
  Recycled* recycled_;
  bool use_echoes_;
  std::vector<CountedSource> stores_;
  History history_;
  Trusts trusts_;
  float momentum_ = 1;
  bool recording_ = false;

  std::vector<GrownNode> nodes_;
  std::vector<std::int32_t> expansion_of_;  // of each node; -1: not expanded
  Frontier<Open> open_;
  std::vector<Opinions> opinions_;  // of each expansion
  std::size_t expansions_ = 0, root_ = 0, max_nodes_ = 0;
  std::uint32_t count_ = 0;
  std::vector<Token> tail_;
  std::vector<EvidenceReader::Child> children_;
  Proposals proposals_;

  std::vector<Row> rows_;
  std::vector<float> facts_, recorded_facts_;
  std::vector<std::uint8_t> recorded_labels_;
  std::vector<std::uint32_t> recorded_ends_;
};

}  // namespace rest_store
