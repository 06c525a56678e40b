// A draft session as Python holds it: conversions and the release of the GIL, no algorithm.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <sstream>
#include <tuple>
#include <utility>

#include "python/bindings.hpp"
#include "python/native_calibration.hpp"
#include "session/tree_builder.hpp"
#include "trees/tree_columns.hpp"

namespace rest_store {

// A datastore's reader of evidence, and the arrays that keep its mappings open.
struct NativeEvidenceReader {
  NativeEvidenceReader(const nb::list& shards, std::uint32_t vocabulary, bool live,
                       std::shared_ptr<SuffixCache> cache, std::shared_ptr<Sharing> sharing)
      : keep(shards),
        reader(std::make_unique<EvidenceReader>(shard_views(shards), vocabulary, live,
                                                std::move(cache),
                                                require_sharing(shards, std::move(sharing)))) {}

  nb::list keep;
  std::unique_ptr<EvidenceReader> reader;
};

// Rows of most likely tokens, [n, k]. -1, or any other number that is no token, ends a row.
using TopK = Array<std::int32_t, 2>;

// Rows of the text, and of the nodes of the last tree, where there are any.
struct AcceptedRows {
  std::optional<TopK> text, nodes;
};

// The columns of a draft, as Python's TokenTree holds them: those of tree_columns.hpp with counts
// of 0, scores float32[N] and origins uint8[N]. `origins_of` returns the origins of a node.
template <class Origins>
nb::tuple scored_columns(std::span<const DraftNode> nodes, Origins&& origins_of) {
  constexpr std::size_t kItem = sizeof(std::int32_t);
  const std::size_t size = nodes.size();
  std::vector<std::int32_t> columns(kNodeBytes / kItem * size);
  std::int32_t* const tokens = columns.data() + kTokensAt / kItem * size;
  std::int32_t* const parents = columns.data() + kParentsAt / kItem * size;
  std::int32_t* const depths = columns.data() + kDepthsAt / kItem * size;
  std::vector<float> scores(size);
  std::vector<std::uint8_t> origins(size);
  for (std::size_t i = 0; i < size; ++i) {
    tokens[i] = static_cast<std::int32_t>(nodes[i].token);
    parents[i] = nodes[i].parent;
    depths[i] = static_cast<std::int32_t>(nodes[i].depth);
    scores[i] = nodes[i].score;
    origins[i] = static_cast<std::uint8_t>(origins_of(nodes[i]));
  }
  return nb::make_tuple(bytes_of(columns), bytes_of(scores), bytes_of(origins));
}

// The options of a draft. There are more costs than nodes. With `length`, it is a lookahead.
inline DraftOptions draft_options(std::size_t max_nodes, const Array<double>& costs, bool is_chain,
                                  const Array<std::int32_t>& verified, std::size_t length) {
  if (costs.size() > 0) max_nodes = std::min(max_nodes, costs.size() - 1);
  const Shape shape = length > 0 ? Shape::kLookahead : is_chain ? Shape::kChain : Shape::kTree;
  return {max_nodes, shape, span_of(costs), tokens_of(verified), length};
}

// A filter written in Python: called with (node, parent, token, tokens int32[n], probabilities
// float32[n]), it returns None, for no change, or the tokens and probabilities of the candidates
// that are left or new. Holds the GIL meanwhile.
class PythonFilter : public CandidateFilter {
 public:
  explicit PythonFilter(nb::object function) : function_(std::move(function)) {}

  bool filter(std::int32_t node, std::int32_t parent, Token token,
              std::vector<FilteredCandidate>& candidates) override {
    const nb::gil_scoped_acquire hold;
    tokens_.clear();
    probabilities_.clear();
    for (const FilteredCandidate& candidate : candidates) {
      tokens_.push_back(static_cast<std::int32_t>(candidate.token));
      probabilities_.push_back(candidate.probability);
    }
    const nb::object answer = function_(node, parent, static_cast<std::int32_t>(token),
                                        bytes_of(tokens_), bytes_of(probabilities_));
    if (answer.is_none()) return false;
    const auto [tokens, probabilities] = nb::cast<std::tuple<nb::bytes, nb::bytes>>(answer);
    const std::size_t count = tokens.size() / sizeof(std::int32_t);
    if (probabilities.size() != count * sizeof(float)) throw nb::value_error("of unequal length");
    const std::vector<FilteredCandidate> before = std::exchange(candidates, {});
    for (std::size_t i = 0; i < count; ++i) {
      FilteredCandidate candidate{0, kFilterOrigin, 0};
      std::memcpy(&candidate.token, tokens.c_str() + i * sizeof(Token), sizeof(Token));
      std::memcpy(&candidate.probability, probabilities.c_str() + i * sizeof(float), sizeof(float));
      for (const FilteredCandidate& other : before)
        if (other.token == candidate.token) candidate.origins = other.origins;
      candidates.push_back(candidate);
    }
    return true;
  }

 private:
  nb::object function_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> probabilities_;
};

// One generation. Sources are identified by their indices among the session's sources, of which
// there are at most 8.
class NativeSession {
 public:
  explicit NativeSession(NativeCalibration& calibration)
      : calibration_(calibration), builder_(calibration.trees().fitted) {}

  void use_prompt_lookup(std::uint32_t source) {
    builder_.use_lookup();
    source_of_[0] = source;
  }

  void use_recycled_logits(std::uint32_t source, RecycledLogits& recycled) {
    builder_.use_recycled(recycled);
    source_of_[1] = source;
  }

  // The origin of the candidates that it proposes is `source`.
  void use_filter(std::uint32_t source, nb::object function) {
    filter_ = std::make_unique<PythonFilter>(std::move(function));
    builder_.use_filter(*filter_);
    filter_source_ = source;
  }

  // Stores are datastores. Another reader: the datastore has other shards.
  void add_store(std::uint32_t source, NativeEvidenceReader& reader) {
    if (builder_.store_count() == kMaxStores)
      throw nb::value_error("more datastores than a session can hold");
    builder_.add_store(*reader.reader);
    source_of_.push_back(source);
    readers_.push_back(nb::find(reader));
  }
  void set_reader(std::uint32_t source, NativeEvidenceReader& reader) {
    const std::size_t store = store_at(source);
    builder_.set_reader(store, *reader.reader);
    readers_[store] = nb::find(reader);
  }
  void remove_store(std::uint32_t source) {
    const std::size_t store = store_at(source);
    builder_.remove_store(store);
    source_of_.erase(source_of_.begin() + kFirstStore + static_cast<std::ptrdiff_t>(store));
    readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(store));
  }

  // Rows of most likely tokens end at one that is not below `vocabulary`.
  void limit_tokens(std::uint64_t vocabulary) { vocabulary_ = vocabulary; }
  void learn_online(bool on) { builder_.learn_online(on); }

  // Before `prompt`: a text that the output will probably resemble.
  void add_reference(const Array<std::int32_t>& tokens) {
    const nb::gil_scoped_release release;
    builder_.add_reference(tokens_of(tokens));
  }

  void prompt(const Array<std::int32_t>& tokens) {
    const nb::gil_scoped_release release;
    builder_.begin_text(tokens_of(tokens));
  }

  // Make the next draft, and return it as scored_columns(). The arguments are those of
  // draft_options().
  nb::tuple draft(std::size_t max_nodes, const Array<double>& costs, bool is_chain,
                  const Array<std::int32_t>& verified, std::size_t length) {
    const DraftOptions options = draft_options(max_nodes, costs, is_chain, verified, length);
    {
      const nb::gil_scoped_release release;
      begin().build(options);
    }
    return tree();
  }

  // `draft` in steps, for batches: begin() and the builder's steps, which need no GIL, then tree().
  TreeBuilder& begin() {
    before_ = calibration_.online_now();
    builder_.set_online(before_);
    return builder_;
  }
  nb::tuple tree() const {
    return scored_columns(builder_.nodes(),
                          [&](const DraftNode& node) { return origins_of(node); });
  }

  // Check the rows of likely tokens for so many accepted tokens. `top_k` has a row after each of
  // these, and perhaps rows after tokens before them. `node_top_k` has a row for the context
  // before, and one for each node of the last tree. ValueError: another number of rows.
  AcceptedRows accepted_rows(std::size_t tokens, const std::optional<TopK>& top_k,
                             const std::optional<TopK>& node_top_k) {
    const std::size_t nodes = 1 + builder_.nodes().size();
    return {rows_of("top_k", top_k, tokens, length() + tokens),
            rows_of("node_top_k", node_top_k, nodes, nodes)};
  }

  // Append tokens that the target model has produced; needs no GIL.
  void accept(std::span<const Token> tokens, const AcceptedRows& rows) {
    if (rows.nodes)
      for (std::size_t i = 0; i < rows.nodes->shape(0); ++i)
        builder_.learn_likely_after(static_cast<std::int32_t>(i) - 1,
                                    top_tokens_of(*rows.nodes, i));
    const std::size_t accepted = builder_.accept(tokens);
    if (builder_.learns_online()) calibration_.add(before_, builder_.online());
    before_ = builder_.online();
    if (rows.text) {
      // `nodes` has the rows of the context and of accepted nodes already; none may count twice.
      const std::size_t first = rows.text->shape(0) - tokens.size(), known = first + accepted;
      if (rows.nodes) learn_text(*rows.text, first == 0 ? 0 : first - 1, known);
      else learn_text(*rows.text, 0, 0);
    }
  }

  // Discard the draft, as if none had been made since the last accept.
  void forget() { builder_.forget(); }

  std::size_t length() const { return builder_.text().size(); }
  nb::bytes text() const {
    return nb::bytes(reinterpret_cast<const char*>(builder_.text().data()),
                     builder_.text().size_bytes());
  }

  std::size_t longest_probe() const { return builder_.longest_probe(); }

  void record(bool on) { builder_.record(on); }
  // (features float32[rows, kFeatures], labels uint8[rows], ends uint32[positions]) recorded since
  // the last call.
  nb::tuple recorded() {
    const Recorded recorded = builder_.take_recorded();
    return nb::make_tuple(bytes_of(recorded.features), bytes_of(recorded.labels),
                          bytes_of(recorded.ends));
  }

 private:
  static constexpr std::ptrdiff_t kFirstStore = 2;  // in source_of_

  std::size_t store_at(std::uint32_t source) const {
    const auto place = std::find(source_of_.begin() + kFirstStore, source_of_.end(), source);
    if (place == source_of_.end()) throw nb::value_error("no datastore there");
    return static_cast<std::size_t>(place - source_of_.begin() - kFirstStore);
  }

  // The indices of the sources that proposed a node, one bit each.
  std::uint32_t origins_of(const DraftNode& node) const {
    std::uint32_t origins = 0;
    for (std::size_t origin = 0; origin < source_of_.size(); ++origin)
      if ((node.origins >> origin & 1) != 0) origins |= 1U << source_of_[origin];
    if ((node.origins & kFilterOrigin) != 0) origins |= 1U << filter_source_;
    return origins;
  }

  static std::optional<TopK> rows_of(const char* name, const std::optional<TopK>& values,
                                     std::size_t least, std::size_t most) {
    if (!values) return std::nullopt;
    const std::size_t rows = values->shape(0);
    if (rows >= least && rows <= most) return values;
    std::ostringstream fault;
    fault << name << " is of shape [" << rows << ", " << values->shape(1) << "], expected ["
          << least;
    if (least < most) fault << ".." << most;
    fault << ", k]";
    throw nb::value_error(fault.str().c_str());
  }

  // Learn `rows`, which belong to the last tokens of the text, except for rows `from` .. `to` - 1.
  void learn_text(const TopK& rows, std::size_t from, std::size_t to) {
    const std::size_t before = length() - rows.shape(0);
    for (std::size_t i = 0; i < rows.shape(0); ++i)
      if (i < from || i >= to) builder_.learn_likely_within(before + i + 1, top_tokens_of(rows, i));
  }

  TopTokens top_tokens_of(const TopK& rows, std::size_t row) const {
    TopTokens top;
    for (std::size_t i = 0; i < std::min<std::size_t>(rows.shape(1), kTopK); ++i) {
      const std::int32_t token = rows.data()[row * rows.shape(1) + i];
      if (token < 0 || static_cast<Token>(token) >= vocabulary_) break;
      top.tokens[top.size++] = static_cast<Token>(token);
    }
    return top;
  }

  NativeCalibration& calibration_;
  std::vector<nb::object> readers_;             // of each store, kept alive
  std::vector<std::uint32_t> source_of_{0, 0};  // of prompt lookup, recycled logits and each store
  std::unique_ptr<PythonFilter> filter_;
  std::uint32_t filter_source_ = 0;
  OnlineCalibration before_;
  TreeBuilder builder_;
  std::uint64_t vocabulary_ = std::uint64_t{1} << 31;
};

}  // namespace rest_store
