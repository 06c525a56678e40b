// Builds the draft trees of one generation: best-first over the candidates of all sources, by acceptance probability.
// Learns from what the target model accepted.
#pragma once

#include "session/acceptance.hpp"
#include "session/evidence_rows.hpp"
#include "session/frontier.hpp"
#include "session/tree_evidence.hpp"

namespace rest_store {

constexpr std::size_t kWindow = 64;  // last tokens of a context that sources read
constexpr float kMinScore = 1e-9F;   // of a node
constexpr std::uint32_t kMaxTreeDepth = 48;

struct DraftNode {
  Token token;
  std::int32_t parent;  // -1: child of the context
  std::uint32_t depth;
  std::uint32_t origins;
  float score;        // probability that it is accepted
  float probability;  // given that its parent is
};

// How many of `nodes`, in the order in which they were taken, make a step produce most tokens in its time; of equals
// the fewest. `costs[n]` is the time of a step that verifies n nodes.
inline std::size_t pruned_size(std::span<const DraftNode> nodes, std::span<const double> costs) {
  double tokens = 1, best_rate = 0;
  std::size_t best = 0;
  for (std::size_t count = 0; count < costs.size() && count <= nodes.size(); ++count) {
    if (count > 0) tokens += static_cast<double>(nodes[count - 1].score);
    if (const double rate = tokens / costs[count]; rate > best_rate) {
      best_rate = rate;
      best = count;
    }
  }
  return best;
}

// The order in which to verify nodes: the most probable path first, so that its KV cache entries are contiguous, then
// the others as they were taken. Parents stay before their children.
inline std::vector<std::int32_t> verification_order(std::span<const DraftNode> nodes) {
  std::vector<std::int32_t> order;
  std::vector<bool> on_path(nodes.size());
  std::int32_t last = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i)  // of a node's children, the most probable was taken first
    if (nodes[i].parent == last) {
      last = static_cast<std::int32_t>(i);
      order.push_back(last);
      on_path[i] = true;
    }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (!on_path[i]) order.push_back(static_cast<std::int32_t>(i));
  return order;
}

// A source with counts: a datastore in this process, or one whose evidence or trees are set for each step.
struct Store {
  EvidenceReader* reader = nullptr;  // null: an external source
  TreeEvidence trees;
  EvidenceRows rows;
  bool present = true;     // in this step
  bool live_rows = false;  // whether the rows are of a live store

  bool live() const { return reader != nullptr ? reader->live() : !rows.empty() && live_rows; }

  // What an external source knows after `path`. Returns whether it has been asked: no row does not mean no occurrence.
  bool evidence_after(std::span<const Token> path, Evidence& out) {
    if (!rows.empty()) return rows.after(path, out);
    trees.after(path, out);
    return true;
  }
};

// What was recorded for fitting a calibration: the features and labels of candidates, and where the rows of each place
// end.
struct Recorded {
  std::vector<float> features;
  std::vector<std::uint8_t> labels;
  std::vector<std::uint32_t> ends;
};

// Not thread-safe. What it points to outlives it.
class TreeBuilder {
 public:
  explicit TreeBuilder(const FittedTrees& trees) : trees_(trees) {}

  PromptLookup lookup;  // holds the text, whether prompt lookup is a source or not
  OnlineCalibration online;
  RecycledLogits* recycled = nullptr;
  bool use_lookup = false;
  bool learns_online = true;
  bool records = false;
  std::size_t max_suffix = 16;  // of the context, for stores; below the root, the path is added

  Store& store(std::size_t place) { return stores_[place]; }
  std::size_t store_count() const { return stores_.size(); }
  // Add a store and return its place; without a reader, evidence or trees are set for each step.
  std::size_t add_store(EvidenceReader* reader) {
    stores_.emplace_back().reader = reader;
    hit_rates_.stores.emplace_back();
    return stores_.size() - 1;
  }
  const std::vector<DraftNode>& nodes() const { return nodes_; }

  // Build a tree of at most `max_nodes` nodes, in the order in which they are taken: by descending score, parents
  // before children.
  void build(std::size_t max_nodes) {
    max_nodes_ = max_nodes;
    has_live_ =
        std::any_of(stores_.begin(), stores_.end(), [](const Store& store) { return store.present && store.live(); });
    nodes_.clear();
    frontier_.clear();
    pushed_ = 0;
    expansions_ = 0;
    expansion_of_.clear();
    features_.clear();
    rows_.clear();
    if (lookup.tokens().empty()) return;
    expand(-1);
    while (nodes_.size() < max_nodes && !frontier_.empty()) {
      const Open best = frontier_.pop();
      const std::uint32_t depth = best.parent < 0 ? 1 : node(best.parent).depth + 1;
      nodes_.push_back({best.token, best.parent, depth, best.origins, best.score, best.probability});
      expansion_of_.push_back(-1);
      if (depth < kMaxTreeDepth && (records || frontier_.may_contribute(best.score, max_nodes - nodes_.size())))
        expand(static_cast<std::int32_t>(nodes_.size()) - 1);
    }
  }

  // Keep only the first `count` nodes: the others are not verified.
  void prune(std::size_t count) {
    nodes_.resize(count);
    expansion_of_.resize(count);
  }

  // Take a tree that was built elsewhere, parents before children, as the one drafted last.
  void adopt(std::vector<DraftNode> nodes) {
    forget();
    nodes_ = std::move(nodes);
    expansion_of_.assign(nodes_.size(), -1);
  }

  // The last tokens of the context and the path to node `place`; valid until the next call.
  std::span<const Token> tail_of(std::int32_t place) {
    const std::vector<Token>& text = lookup.tokens();
    const std::size_t depth = place < 0 ? 0 : node(place).depth;
    const std::size_t from = std::min(text.size(), kWindow);
    tail_.resize(from + depth);
    std::copy(text.end() - static_cast<std::ptrdiff_t>(from), text.end(), tail_.begin());
    for (std::size_t i = tail_.size(); place >= 0; place = node(place).parent) tail_[--i] = node(place).token;
    return std::span<const Token>(tail_).last(std::min(tail_.size(), kWindow));
  }

  // Append the tokens that the target model produced, learn from them, and return how many of them are in the tree.
  std::size_t accept(std::span<const Token> tokens) {
    std::int32_t place = -1;
    const bool drafted = expansions_ > 0 || !nodes_.empty();
    bool on_tree = drafted;
    std::size_t depth = 0;
    for (const Token token : tokens) {
      if (on_tree) {
        if (expansions_ > 0) learn(place, token);  // else built elsewhere, where it is learnt from
        std::int32_t next = -1;
        for (std::size_t i = 0; i < nodes_.size() && next < 0; ++i)
          if (nodes_[i].parent == place && nodes_[i].token == token) next = static_cast<std::int32_t>(i);
        on_tree = next >= 0;
        place = next;
        depth += on_tree;
      }
      lookup.append(token);
    }
    if (drafted) mean_accepted_ += 0.2F * (static_cast<float>(depth) - mean_accepted_);
    forget();
    return depth;
  }

  // Discard the tree: as if none had been built since the last accept().
  void forget() {
    expansions_ = 0;
    nodes_.clear();
  }

  // What recent steps have taught of this text: the mean accepted length, and the hit rates of prompt lookup, of
  // recycled logits and of each store.
  std::vector<float> recent() const {
    std::vector<float> out{mean_accepted_, hit_rates_.lookup.value, hit_rates_.recycled.value};
    for (const HitRate& rate : hit_rates_.stores) out.push_back(rate.value);
    return out;
  }
  // Go on from what recent() of another session was, if that had as many stores.
  void set_recent(std::span<const float> values) {
    if (values.size() != 3 + hit_rates_.stores.size()) return;
    mean_accepted_ = std::clamp(values[0], 0.0F, static_cast<float>(kMaxTreeDepth));
    const auto rate = [&](std::size_t place) { return HitRate{std::clamp(values[place], 0.0F, 1.0F)}; };
    hit_rates_.lookup = rate(1);
    hit_rates_.recycled = rate(2);
    for (std::size_t i = 0; i < hit_rates_.stores.size(); ++i) hit_rates_.stores[i] = rate(3 + i);
  }

  // The candidates of places that accepted paths led through, recorded since the last call.
  Recorded take_recorded() { return std::exchange(recorded_, {}); }

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

  const DraftNode& node(std::int32_t place) const { return nodes_[static_cast<std::size_t>(place)]; }

  // The expansion of node `place` or, for -1, of the context; -1: not expanded.
  std::int32_t expansion_of(std::int32_t place) const {
    return place < 0 ? 0 : expansion_of_[static_cast<std::size_t>(place)];
  }

  // Read the evidence of every store after `tail`, which ends `depth` tokens below the root; `above` is the parent's.
  void read_stores(const SourceEvidence* above, std::span<const Token> tail, std::size_t depth, SourceEvidence& out) {
    children_.clear();
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      Store& store = stores_[i];
      const std::span<const Token> suffix = tail.last(std::min(tail.size(), max_suffix + depth));
      if (!store.present) out.stores[i].clear();
      else if (store.reader == nullptr) out.present[i] = store.evidence_after(tail.last(depth), out.stores[i]);
      else if (above == nullptr) store.reader->root(suffix, out.stores[i]);
      else children_.push_back({store.reader, &above->stores[i], suffix, &out.stores[i]});
    }
    EvidenceReader::read(children_);
  }

  // Ask all sources what follows node `place`, or the context, and push the candidates.
  void expand(std::int32_t place) {
    const std::span<const Token> tail = tail_of(place);
    if (expansions_ == source_evidence_.size()) source_evidence_.emplace_back();
    SourceEvidence& sources = source_evidence_[expansions_];
    sources.stores.resize(stores_.size());
    sources.present.resize(stores_.size());
    sources.live.resize(stores_.size());
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      sources.present[i] = stores_[i].present;
      sources.live[i] = stores_[i].live() && (records || !trees_.live.trees.empty());
    }
    if (use_lookup) lookup.find(tail, sources.lookup);
    if (recycled != nullptr) sources.recycled = recycled->find(tail);
    NodeFeatures features;
    features.mean_accepted = mean_accepted_;
    if (place < 0) {
      read_stores(nullptr, tail, 0, sources);
    } else {
      const DraftNode& parent = node(place);
      const auto above = static_cast<std::size_t>(expansion_of(parent.parent));
      read_stores(&source_evidence_[above], tail, parent.depth, sources);
      features.depth = static_cast<float>(parent.depth);
      features.score = parent.score;
      features.probability = parent.probability;
      expansion_of_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(expansions_);
    }
    const std::size_t limit = features.score >= kProbable && max_nodes_ > 16 ? kCandidates : kLanes;
    candidates_.fill(sources, hit_rates_, features, lookup, limit);
    const std::array<float, kCandidates> probabilities =
        acceptance_probabilities(candidates_, trees_.of(has_live_), online);
    for (std::size_t row = 0; row < candidates_.size(); ++row) {
      const Token token = candidates_.token(row);
      const std::uint32_t origins = candidates_.origins(row);
      const float probability = probabilities[row], score = features.score * probability;
      if (score >= std::max(frontier_.cutoff(), kMinScore))
        frontier_.push({score, pushed_++, token, place, origins, probability});
      rows_.push_back({static_cast<std::uint32_t>(expansions_), token, probability, origins});
      if (records)
        for (std::size_t i = 0; i < kFeatures; ++i) features_.push_back(candidates_.feature(row, i));
    }
    ++expansions_;
  }

  // `token` came after node `place`, or after the context.
  void learn(std::int32_t place, Token token) {
    const std::int32_t expansion = expansion_of(place);
    if (expansion < 0) return;
    const SourceEvidence& sources = source_evidence_[static_cast<std::size_t>(expansion)];
    const auto right = static_cast<std::int64_t>(token);
    if (const std::int64_t best = sources.best_of_lookup(); best >= 0) hit_rates_.lookup.learn(best == right);
    if (const std::int64_t best = sources.best_of_recycled(); best >= 0) hit_rates_.recycled.learn(best == right);
    for (std::size_t i = 0; i < stores_.size(); ++i)
      if (sources.present[i]) hit_rates_.stores[i].learn(sources.best_of_store(i) == right);
    const std::size_t recorded = recorded_.labels.size();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      if (row.expansion != static_cast<std::uint32_t>(expansion)) continue;
      if (learns_online) online.learn(row.origins, row.probability, row.token == token);
      if (!records) continue;
      recorded_.labels.push_back(row.token == token);
      const auto first = features_.begin() + static_cast<std::ptrdiff_t>(i * kFeatures);
      recorded_.features.insert(recorded_.features.end(), first, first + kFeatures);
    }
    if (learns_online) online.decay();
    if (recorded_.labels.size() > recorded)
      recorded_.ends.push_back(static_cast<std::uint32_t>(recorded_.labels.size()));
  }

  const FittedTrees& trees_;
  bool has_live_ = false;  // a live store takes part in this step
  std::vector<Store> stores_;
  HitRates hit_rates_;
  float mean_accepted_ = 1;

  // The tree and, of each expansion (the context's is the first), what the sources knew.
  std::vector<DraftNode> nodes_;
  std::vector<std::int32_t> expansion_of_;  // of each node; -1: not expanded
  Frontier<Open> frontier_;
  std::vector<SourceEvidence> source_evidence_;
  std::size_t expansions_ = 0, max_nodes_ = 0;
  std::uint32_t pushed_ = 0;
  std::vector<Row> rows_;        // the candidates of all expansions
  std::vector<float> features_;  // theirs, if they are recorded
  Recorded recorded_;

  std::vector<Token> tail_;
  std::vector<EvidenceReader::Child> children_;
  CandidateTable candidates_;
};

}  // namespace rest_store
