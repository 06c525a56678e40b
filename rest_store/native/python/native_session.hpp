// A draft session as Python holds it: conversions and the release of the GIL, no algorithm.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <numeric>
#include <sstream>

#include "python/arrays.hpp"
#include "python/native_calibration.hpp"
#include "python/native_evidence_reader.hpp"
#include "session/tree_builder.hpp"

namespace rest_store {

// Rows of most likely tokens: int32[n, k] or int64[n, k]. -1, or any other number that is no token, ends a row.
class TopK {
 public:
  using Values = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

  explicit TopK(const Values& values) : values_(values), is_wide_(values.dtype() == nb::dtype<std::int64_t>()) {
    if (!is_wide_ && values.dtype() != nb::dtype<std::int32_t>()) throw nb::type_error("rows of another type");
  }

  std::size_t rows() const { return values_.shape(0); }
  std::size_t width() const { return values_.shape(1); }
  // -1 for what is no token.
  std::int32_t at(std::size_t row, std::size_t place) const {
    const std::size_t i = row * width() + place;
    const std::int64_t token = is_wide_ ? static_cast<const std::int64_t*>(values_.data())[i]
                                        : static_cast<const std::int32_t*>(values_.data())[i];
    return token < 0 || token > std::numeric_limits<std::int32_t>::max() ? -1 : static_cast<std::int32_t>(token);
  }

 private:
  Values values_;
  bool is_wide_;
};

// Rows of the text, and of the nodes of the last tree, where there are any.
struct AcceptedRows {
  std::optional<TopK> of_text, of_nodes;
};

// One generation. Sources are identified by their places among the session's sources, of which there are at most 8.
class NativeSession {
 public:
  explicit NativeSession(NativeCalibration& calibration)
      : calibration_(calibration), builder_(calibration.trees->fitted) {}

  void use_prompt_lookup(std::uint32_t place) {
    builder_.use_lookup = true;
    places_[0] = place;
  }

  void use_recycled_logits(std::uint32_t place, RecycledLogits& recycled) {
    builder_.recycled = &recycled;
    places_[1] = place;
  }

  // Add a store of the source at `place` and return the store's index. Without a reader it is external: evidence or
  // trees are set for each step.
  std::size_t add_store(std::uint32_t place, NativeEvidenceReader* reader) {
    if (builder_.store_count() == kMaxStores) throw nb::value_error("more datastores than a session can hold");
    places_.push_back(place);
    readers_.push_back(nb::find(reader));
    return builder_.add_store(reader == nullptr ? nullptr : reader->reader.get());
  }

  // Read store `index` through `reader` from now on: its datastore has other shards.
  void set_reader(std::size_t index, NativeEvidenceReader& reader) {
    builder_.store(index).reader = reader.reader.get();
    readers_[index] = nb::find(reader);
  }

  // `top_k`: the most likely tokens after the last tokens of the text, here and in `accept`; -1 ends a row. ValueError:
  // it has more rows than there are tokens.
  void prompt(const Array<std::int32_t>& tokens, const std::optional<TopK::Values>& top_k) {
    const std::optional<TopK> rows = rows_of("prompt_top_k", top_k, 0, tokens.size());
    const nb::gil_scoped_release release;
    builder_.lookup.append(tokens_of(tokens));
    builder_.lookup.end_prompt();
    if (rows) learn_text(*rows, 0, 0);
  }

  // Set the trees of one step, each as (path before it, match length, match count, counts, tokens, parents); None: the
  // store takes no part in this step.
  void set_trees(std::size_t index, const nb::object& trees) {
    Store& store = builder_.store(index);
    store.trees.clear();
    store.rows.clear();
    store.present = !trees.is_none();
    if (trees.is_none()) return;
    for (nb::handle item : trees) {
      const auto fields = nb::cast<nb::tuple>(item);
      const auto path = nb::cast<Array<std::int32_t>>(fields[0]);
      SourceTree tree{{}, nb::cast<std::uint32_t>(fields[1]), nb::cast<std::uint64_t>(fields[2]), {}, {}, {}};
      tree.path.assign(tokens_of(path).begin(), tokens_of(path).end());
      const auto counts = nb::cast<Array<std::int64_t>>(fields[3]);
      const auto tokens = nb::cast<Array<std::int32_t>>(fields[4]), parents = nb::cast<Array<std::int32_t>>(fields[5]);
      if (counts.size() != tokens.size() || parents.size() != tokens.size())
        throw nb::value_error("columns of unequal length");
      tree.tokens.assign(tokens_of(tokens).begin(), tokens_of(tokens).end());
      tree.parents.assign(parents.data(), parents.data() + parents.size());
      for (const std::int64_t count : span_of(counts))
        tree.counts.push_back(static_cast<std::uint64_t>(std::max<std::int64_t>(0, count)));
      store.trees.add(std::move(tree));
    }
  }

  // Set the evidence of one step, of a live store or a frozen one: the rows of each of its parts. ValueError if any of
  // them are not evidence; then the store takes no part in the step.
  void set_evidence(std::size_t index, const std::vector<nb::bytes>& parts, std::uint64_t vocabulary,
                    std::size_t max_rows, bool live) {
    Store& store = builder_.store(index);
    store.trees.clear();
    store.rows.clear();
    store.live_rows = live;
    store.present = false;
    if (parts.empty()) throw nb::value_error("of no part");
    parts_.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (const char* fault = parts_[i].read({parts[i].c_str(), parts[i].size()}, vocabulary, max_rows))
        throw nb::value_error(fault);
    if (parts.size() == 1) std::swap(store.rows, parts_[0]);
    else store.rows.combine(parts_);
    store.present = true;
  }

  // (packed tree as TokenTree has it, scores float32[N], origins uint8[N]); `costs` may be empty, else the draft has
  // fewer nodes than there are costs.
  nb::tuple draft(std::size_t max_nodes, const Array<double>& costs, bool is_chain, float min_score) {
    build(limits_of(max_nodes, costs, is_chain, min_score));
    return tree();
  }

  // The same draft in the layout of the message DraftSessionResponse.
  nb::bytes draft_nodes(std::size_t max_nodes, const Array<double>& costs, bool is_chain, float min_score) {
    build(limits_of(max_nodes, costs, is_chain, min_score));
    return nodes();
  }

  // What one draft is built with.
  static DraftLimits limits_of(std::size_t max_nodes, const Array<double>& costs, bool is_chain, float min_score) {
    if (costs.size() > 0) max_nodes = std::min(max_nodes, costs.size() - 1);
    return {max_nodes, is_chain ? Shape::kChain : Shape::kTree, span_of(costs), min_score};
  }

  // `draft` and `draft_nodes` in steps, for batches: begin(), TreeBuilder::build() or its own steps, and end() need no
  // GIL; then tree().
  TreeBuilder& begin() {
    builder_.online = before_ = calibration_.online_now();
    return builder_;
  }
  void end() { order_ = verification_order(builder_.nodes()); }
  nb::tuple tree() const {
    const std::size_t size = order_.size();
    const std::vector<std::int32_t> row_of = rows_of_nodes();
    std::vector<std::int32_t> packed(5 * size);  // counts, which are 0, take two places each
    std::vector<float> scores(size);
    std::vector<std::uint8_t> origins(size);
    for (std::size_t i = 0; i < size; ++i) {
      const DraftNode& node = node_in(i);
      packed[2 * size + i] = static_cast<std::int32_t>(node.token);
      packed[3 * size + i] = node.parent < 0 ? -1 : row_of[static_cast<std::size_t>(node.parent)];
      packed[4 * size + i] = static_cast<std::int32_t>(node.depth);
      scores[i] = node.score;
      origins[i] = origins_of(node);
    }
    return nb::make_tuple(bytes_of(packed), bytes_of(scores), bytes_of(origins));
  }

  // The last tree in the layout of the message DraftSessionResponse.
  nb::bytes nodes() const {
    const std::size_t size = order_.size();
    std::vector<char> out(size * kNodeSize);
    const std::vector<std::int32_t> row_of = rows_of_nodes();
    for (std::size_t i = 0; i < size; ++i) {
      const DraftNode& node = node_in(i);
      const auto parent =
          static_cast<std::int16_t>(node.parent < 0 ? -1 : row_of[static_cast<std::size_t>(node.parent)]);
      std::memcpy(&out[i * sizeof(Token)], &node.token, sizeof(Token));
      std::memcpy(&out[size * kScores + i * sizeof(float)], &node.score, sizeof(float));
      std::memcpy(&out[size * kParents + i * sizeof(parent)], &parent, sizeof(parent));
      out[size * kOrigins + i] = static_cast<char>(origins_of(node));
    }
    return bytes_of(out);
  }

  // Take a tree of a service, as `draft_nodes` returns it, as what was drafted last, without the nodes with a lower
  // score than `min_score`; if `chain_nodes` is given, only the most probable path, at most so many nodes and as many
  // as `costs` say. Returns what `draft` does, with origins as they came. ValueError: what is wrong with the tree.
  nb::tuple adopt(const nb::bytes& packed, std::size_t max_nodes, std::uint64_t vocabulary,
                  const std::optional<std::size_t>& chain_nodes, const Array<double>& costs, float min_score) {
    const std::size_t size = packed.size() / kNodeSize;
    if (packed.size() % kNodeSize != 0) throw nb::value_error("of a wrong size");
    if (size > max_nodes) throw nb::value_error("larger than asked for");
    std::vector<DraftNode> nodes(size);
    for (std::size_t i = 0; i < size; ++i) {
      DraftNode& node = nodes[i];
      std::int16_t parent = 0;
      std::memcpy(&node.token, packed.c_str() + i * sizeof(Token), sizeof(Token));
      std::memcpy(&node.score, packed.c_str() + size * kScores + i * sizeof(float), sizeof(float));
      std::memcpy(&parent, packed.c_str() + size * kParents + i * sizeof(parent), sizeof(parent));
      if (node.token >= vocabulary) throw nb::value_error("with a token outside the vocabulary");
      if (parent < -1 || parent >= static_cast<std::int32_t>(i)) throw nb::value_error("with a parent after its child");
      if (!(node.score >= 0 && node.score <= 1)) throw nb::value_error("with a score outside 0..1");
      node.parent = parent;
      node.depth = parent < 0 ? 1 : nodes[static_cast<std::size_t>(parent)].depth + 1;
      node.origins = static_cast<std::uint8_t>(packed.c_str()[size * kOrigins + i]);
    }
    nodes = with_scores_from(min_score, std::move(nodes));
    if (chain_nodes) {
      std::size_t count = 0;
      while (count < std::min(*chain_nodes, nodes.size()) &&
             nodes[count].parent == static_cast<std::int32_t>(count) - 1)
        ++count;
      nodes.resize(count);
      if (costs.size() > 0) nodes.resize(pruned_size(nodes, span_of(costs)));
    }
    order_.resize(nodes.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::vector<std::uint8_t> origins;
    for (const DraftNode& node : nodes) origins.push_back(static_cast<std::uint8_t>(node.origins));
    builder_.adopt(std::move(nodes));
    const nb::tuple out = tree();
    return nb::make_tuple(out[0], out[1], bytes_of(origins));
  }

  // Append what the target model produced; returns how many of its tokens are in the tree drafted last. `top_k` has a
  // row for each token, and may have some for those before; `node_top_k` one for the context before, and one for each
  // node of that tree. ValueError: they have not.
  std::size_t accept(const Array<std::int32_t>& tokens, const std::optional<TopK::Values>& top_k,
                     const std::optional<TopK::Values>& node_top_k) {
    const AcceptedRows rows = accepted_rows_of(tokens.size(), top_k, node_top_k);
    const nb::gil_scoped_release release;
    return append(tokens_of(tokens), rows);
  }

  // The rows of `accept` for so many tokens, checked.
  AcceptedRows accepted_rows_of(std::size_t tokens, const std::optional<TopK::Values>& top_k,
                                const std::optional<TopK::Values>& node_top_k) {
    const std::size_t nodes = 1 + order_.size();
    return {rows_of("top_k", top_k, tokens, length() + tokens), rows_of("node_top_k", node_top_k, nodes, nodes)};
  }

  // `accept` with checked rows; needs no GIL.
  std::size_t append(std::span<const Token> tokens, const AcceptedRows& rows) {
    if (rows.of_nodes) learn_nodes(*rows.of_nodes);
    const std::size_t accepted = builder_.accept(tokens);
    if (builder_.learns_online) calibration_.add(before_, builder_.online);
    before_ = builder_.online;
    order_.clear();
    if (rows.of_text) {
      // `of_nodes` has the rows of the context and of accepted nodes already; none may count twice.
      const std::size_t first = rows.of_text->rows() - tokens.size(), known = first + accepted;
      if (rows.of_nodes) learn_text(*rows.of_text, first == 0 ? 0 : first - 1, known);
      else learn_text(*rows.of_text, 0, 0);
    }
    return accepted;
  }

  // As if nothing had been drafted since the last accept.
  void forget() {
    builder_.forget();
    order_.clear();
  }

  std::size_t length() { return builder_.lookup.tokens().size(); }
  nb::bytes tail(std::size_t count) {
    const auto& text = builder_.lookup.tokens();
    const std::span<const Token> last = std::span(text).last(std::min(count, text.size()));
    return nb::bytes(reinterpret_cast<const char*>(last.data()), last.size_bytes());
  }

  // What recent steps have taught of this text, for a session that goes on with it; finite numbers.
  std::vector<float> recent() { return builder_.recent(); }
  void set_recent(const std::vector<float>& values) { builder_.set_recent(values); }

  void record(bool on) { builder_.records = on; }
  void limit_suffix(std::size_t tokens) { builder_.max_suffix = tokens; }
  // Rows of most likely tokens end at one that is not below `vocabulary`.
  void limit_tokens(std::uint64_t vocabulary) { vocabulary_ = vocabulary; }
  void learn_online(bool on) { builder_.learns_online = on; }

  void time_stages(bool on) {
    builder_.clock = StageClock();
    builder_.clock.on = on;
  }
  // Seconds that drafts took since `time_stages`, by stage. Not for batches: a stage would include other sessions.
  nb::dict stage_seconds() {
    nb::dict out;
    for (std::size_t stage = 0; stage < StageClock::kNames.size(); ++stage)
      out[StageClock::kNames[stage]] = builder_.clock.seconds[stage];
    return out;
  }

  // (features float32[rows, kFeatures], labels uint8[rows], ends uint32[places]) recorded since the last call.
  nb::tuple recorded() {
    const Recorded recorded = builder_.take_recorded();
    return nb::make_tuple(bytes_of(recorded.features), bytes_of(recorded.labels), bytes_of(recorded.ends));
  }

 private:
  // A node of the message DraftSessionResponse, and where its columns begin, in bytes for each node.
  static constexpr std::size_t kScores = sizeof(Token), kParents = kScores + sizeof(float),
                               kOrigins = kParents + sizeof(std::int16_t), kNodeSize = kOrigins + 1;

  const DraftNode& node_in(std::size_t row) const { return builder_.nodes()[static_cast<std::size_t>(order_[row])]; }

  // The row of each node of the last tree in the order of verification.
  std::vector<std::int32_t> rows_of_nodes() const {
    std::vector<std::int32_t> row_of(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i)
      row_of[static_cast<std::size_t>(order_[i])] = static_cast<std::int32_t>(i);
    return row_of;
  }

  // The places of the sources that proposed a node, one bit each.
  std::uint8_t origins_of(const DraftNode& node) const {
    std::uint8_t origins = 0;
    for (std::size_t origin = 0; origin < places_.size(); ++origin)
      if ((node.origins >> origin & 1) != 0) origins |= static_cast<std::uint8_t>(1U << places_[origin]);
    return origins;
  }

  static std::optional<TopK> rows_of(const char* what, const std::optional<TopK::Values>& values, std::size_t least,
                                     std::size_t most) {
    if (!values) return std::nullopt;
    const TopK rows(*values);
    if (rows.rows() >= least && rows.rows() <= most) return rows;
    std::ostringstream fault;
    fault << what << " is of shape [" << rows.rows() << ", " << rows.width() << "], expected [" << least;
    if (least < most) fault << ".." << most;
    fault << ", k]";
    throw nb::value_error(fault.str().c_str());
  }

  // Learn `rows`, which belong to the last tokens of the text, except for rows `from` .. `to` - 1.
  void learn_text(const TopK& rows, std::size_t from, std::size_t to) {
    if (builder_.recycled == nullptr) return;
    const std::span<const Token> text = builder_.lookup.tokens();
    for (std::size_t i = 0; i < rows.rows(); ++i) {
      if (i >= from && i < to) continue;
      const auto context = text.first(text.size() - rows.rows() + i + 1);
      builder_.recycled->learn(context.last(std::min(context.size(), kRecycledOrders)), top_tokens_of(rows, i));
    }
  }

  void learn_nodes(const TopK& rows) {
    if (builder_.recycled == nullptr) return;
    for (std::size_t i = 0; i < rows.rows(); ++i)
      builder_.recycled->learn(builder_.tail_of(i == 0 ? -1 : order_[i - 1]), top_tokens_of(rows, i));
  }

  void build(const DraftLimits& limits) {
    const nb::gil_scoped_release release;
    begin().build(limits);
    end();
  }

  TopTokens top_tokens_of(const TopK& rows, std::size_t row) const {
    TopTokens top;
    for (std::size_t i = 0; i < std::min<std::size_t>(rows.width(), kTopK); ++i) {
      const std::int32_t token = rows.at(row, i);
      if (token < 0 || static_cast<Token>(token) >= vocabulary_) break;
      top.tokens[top.size++] = static_cast<Token>(token);
    }
    return top;
  }

  NativeCalibration& calibration_;
  std::vector<nb::object> readers_;          // of each store, kept alive
  std::vector<std::uint32_t> places_{0, 0};  // of prompt lookup, recycled logits and each store
  OnlineCalibration before_;
  TreeBuilder builder_;
  std::vector<EvidenceRows> parts_;  // of one datastore; keeps its memory
  std::uint64_t vocabulary_ = std::uint64_t{1} << 31;
  std::vector<std::int32_t> order_;
};

}  // namespace rest_store
