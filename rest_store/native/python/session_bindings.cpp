// Python's view of drafting sessions and calibrations: conversions and the release of the GIL, no algorithm.

#include "python/session_bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "session/collect_evidence.hpp"
#include "session/gbdt_fit.hpp"
#include "session/pruning.hpp"

namespace nb = nanobind;
using namespace rest_store;

namespace {

template <class Item, std::size_t Dimensions = 1>
using Array = nb::ndarray<const Item, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

template <class Item>
std::span<const Item> span_of(const Array<Item>& array) {
  return {array.data(), array.size()};
}

std::span<const Token> tokens_of(const Array<std::int32_t>& array) {
  return {reinterpret_cast<const Token*>(array.data()), array.size()};
}

template <class Item>
nb::bytes bytes_of(const std::vector<Item>& items) {
  return nb::bytes(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item));
}

// A datastore's shards and the arrays that keep their mappings open.
struct NativeEvidenceReader {
  NativeEvidenceReader(const nb::list& shards, std::uint32_t vocabulary) : keep(shards) {
    std::vector<ShardView> views;
    for (nb::handle shard : shards) {
      const auto field = [&](const char* name) { return nb::cast<std::uint64_t>(shard.attr(name)); };
      const auto array = [&](const char* name) { return nb::cast<Array<std::uint8_t>>(shard.attr(name)).data(); };
      views.push_back({array("symbols"), reinterpret_cast<const std::uint64_t*>(array("keys")), array("entries"),
                       field("position_count"), field("entry_count"), field("key_count"),
                       static_cast<std::uint32_t>(field("width")), static_cast<std::uint32_t>(field("bits"))});
    }
    reader = std::make_unique<EvidenceReader>(std::move(views), vocabulary);
  }

  nb::list keep;
  std::unique_ptr<EvidenceReader> reader;
};

// A gbdt as bytes: base, then the trees as they lie in memory.
Gbdt gbdt_of(const nb::bytes& packed) {
  constexpr std::size_t kHead = sizeof(float);
  if (packed.size() < kHead || (packed.size() - kHead) % sizeof(ObliviousTree) != 0)
    throw nb::value_error("bytes that are no gbdt");
  Gbdt gbdt;
  std::memcpy(&gbdt.base, packed.c_str(), kHead);
  gbdt.trees.resize((packed.size() - kHead) / sizeof(ObliviousTree));
  if (!gbdt.trees.empty())
    std::memcpy(static_cast<void*>(gbdt.trees.data()), packed.c_str() + kHead, packed.size() - kHead);
  for (const ObliviousTree& tree : gbdt.trees)
    for (const std::uint16_t feature : tree.features)
      if (feature >= kFeatures) throw nb::value_error("a gbdt of other features");
  if (!gbdt.finite()) throw nb::value_error("a gbdt of numbers that are not finite");
  return gbdt;
}

nb::bytes packed_of(const Gbdt& gbdt) {
  std::vector<char> out(sizeof(float) + gbdt.trees.size() * sizeof(ObliviousTree));
  std::memcpy(out.data(), &gbdt.base, sizeof(float));
  if (!gbdt.trees.empty())
    std::memcpy(out.data() + sizeof(float), gbdt.trees.data(), gbdt.trees.size() * sizeof(ObliviousTree));
  return bytes_of(out);
}

// A gbdt and what was learnt on top of it, shared by sessions.
struct NativeCalibration {
  explicit NativeCalibration(const nb::bytes& packed) : gbdt(gbdt_of(packed)) {}

  OnlineCalibration online_now() const {
    const std::lock_guard lock(mutex);
    return online;
  }
  // What one step has changed is added, so that sessions at the same time do not undo each other's.
  void add(const OnlineCalibration& before, const OnlineCalibration& after) {
    bool finite = std::isfinite(after.bias - before.bias);
    for (std::size_t i = 0; i < OnlineCalibration::kOrigins; ++i)
      finite = finite && std::isfinite(after.origins[i] - before.origins[i]);
    if (!finite) return;
    const std::lock_guard lock(mutex);
    online.bias += after.bias - before.bias;
    for (std::size_t i = 0; i < OnlineCalibration::kOrigins; ++i)
      online.origins[i] += after.origins[i] - before.origins[i];
    online.bound();
  }
  std::vector<float> weights() const {
    const OnlineCalibration now = online_now();
    std::vector<float> out{now.bias};
    out.insert(out.end(), now.origins.begin(), now.origins.end());
    return out;
  }
  void set_weights(const std::vector<float>& weights) {
    if (weights.size() != 1 + OnlineCalibration::kOrigins) throw nb::value_error("weights of another number");
    for (const float weight : weights)
      if (!std::isfinite(weight)) throw nb::value_error("a weight that is not finite");
    const std::lock_guard lock(mutex);
    online.bias = weights[0];
    std::copy(weights.begin() + 1, weights.end(), online.origins.begin());
    online.bound();
  }

  Gbdt gbdt;
  OnlineCalibration online;
  mutable std::mutex mutex;
};

// One generation. Keeps what it reads from alive.
class NativeSession {
 public:
  // `stores`: of each datastore-like source its Evidence, or None if trees are given for it; `places`: of prompt
  // lookup, recycled logits and each store, the source's place in the session, -1 where there is none.
  NativeSession(const nb::list& stores, const nb::object& calibration, const nb::object& recycled,
                std::vector<std::int32_t> places)
      : keep_(nb::make_tuple(stores, calibration, recycled)),
        calibration_(nb::cast<NativeCalibration*>(calibration)),
        recycled_(recycled.is_none() ? nullptr : nb::cast<RecycledLogits*>(recycled)),
        places_(std::move(places)),
        builder_(readers(stores), &calibration_->gbdt, recycled_, places_.at(0) >= 0) {}

  void prompt(const Array<std::int32_t>& tokens) {
    const nb::gil_scoped_release release;
    for (const Token token : tokens_of(tokens)) builder_.lookup().append(token);
    builder_.lookup().end_prompt();
  }

  // Trees of one step for the store at `place`: (path before it, match length, match count, counts, tokens, parents)
  // each; None: the source is left out of this step.
  void give(std::size_t place, const nb::object& trees) {
    CountSource& source = builder_.store(place);
    source.trees.clear();
    source.rows.clear();
    source.present = !trees.is_none();
    if (trees.is_none()) return;
    for (nb::handle item : trees) {
      const auto tree = nb::cast<nb::tuple>(item);
      const auto before = nb::cast<Array<std::int32_t>>(tree[0]);
      SourceTree given{{}, nb::cast<std::uint32_t>(tree[1]), nb::cast<std::uint64_t>(tree[2]), {}, {}, {}};
      given.before.assign(tokens_of(before).begin(), tokens_of(before).end());
      const auto counts = nb::cast<Array<std::int64_t>>(tree[3]);
      const auto tokens = nb::cast<Array<std::int32_t>>(tree[4]), parents = nb::cast<Array<std::int32_t>>(tree[5]);
      if (counts.size() != tokens.size() || parents.size() != tokens.size()) throw nb::value_error("no tree");
      given.tokens.assign(tokens_of(tokens).begin(), tokens_of(tokens).end());
      given.parents.assign(parents.data(), parents.data() + parents.size());
      for (const std::int64_t count : span_of(counts))
        given.counts.push_back(static_cast<std::uint64_t>(std::max<std::int64_t>(0, count)));
      source.trees.add(std::move(given));
    }
  }

  // One more store whose trees or evidence will be given, of the source at `source`; returns its place.
  std::size_t add_store(std::int32_t source) {
    if (builder_.store_count() == kMaxStores) throw nb::value_error("too many sources");
    places_.push_back(source);
    return builder_.add_store();
  }

  // Evidence of one step for the store at `place`, as bytes; ValueError, and the store is left out, if they are none.
  void give_evidence(std::size_t place, const nb::bytes& rows, std::uint64_t vocabulary, std::size_t max_rows) {
    CountSource& source = builder_.store(place);
    source.trees.clear();
    const char* fault = source.rows.read({rows.c_str(), rows.size()}, vocabulary, max_rows);
    source.present = fault == nullptr;
    if (fault != nullptr) throw nb::value_error(fault);
  }

  // (packed tree as TokenTree has it, scores float32[N], origins uint8[N]); `costs` may be empty.
  nb::tuple draft(std::size_t max_nodes, const Array<double>& costs) {
    {
      const nb::gil_scoped_release release;
      builder_.online = before_ = calibration_->online_now();
      builder_.build(max_nodes);
      if (costs.size() > 0) builder_.keep(pruned_size(builder_.nodes(), span_of(costs)));
      order_ = verification_order(builder_.nodes());
    }
    const auto& nodes = builder_.nodes();
    const std::size_t size = nodes.size();
    std::vector<std::int64_t> counts(size);
    std::vector<std::int32_t> columns(3 * size), places(size);
    std::vector<float> scores(size);
    std::vector<std::uint8_t> origins(size);
    for (std::size_t i = 0; i < size; ++i) places[static_cast<std::size_t>(order_[i])] = static_cast<std::int32_t>(i);
    for (std::size_t i = 0; i < size; ++i) {
      const DraftNode& node = nodes[static_cast<std::size_t>(order_[i])];
      columns[i] = static_cast<std::int32_t>(node.token);
      columns[size + i] = node.parent < 0 ? -1 : places[static_cast<std::size_t>(node.parent)];
      columns[2 * size + i] = static_cast<std::int32_t>(node.depth);
      scores[i] = node.score;
      for (std::size_t origin = 0; origin < places_.size(); ++origin)
        if (places_[origin] >= 0 && (node.origins >> origin & 1) != 0)
          origins[i] |= static_cast<std::uint8_t>(1U << places_[origin]);
    }
    nb::bytes packed = nb::steal<nb::bytes>((nb::object(bytes_of(counts)) + nb::object(bytes_of(columns))).release());
    return nb::make_tuple(packed, bytes_of(scores), bytes_of(origins));
  }

  std::size_t accept(const Array<std::int32_t>& tokens) {
    const nb::gil_scoped_release release;
    const std::size_t foreseen = builder_.accept(tokens_of(tokens));
    if (builder_.learns_online) calibration_->add(before_, builder_.online);
    before_ = builder_.online;
    order_.clear();
    return foreseen;
  }

  // As if nothing had been drafted since the last accept.
  void forget() {
    builder_.forget();
    order_.clear();
  }

  // Nodes of the tree that the next accept is about.
  std::size_t tree_size() const { return order_.size(); }

  // After the text up to and with token `first + i`, the model's most likely tokens were row i; -1 ends a row early.
  void learn_text(std::size_t first, const Array<std::int32_t, 2>& rows) {
    if (recycled_ == nullptr) return;
    const nb::gil_scoped_release release;
    const std::span<const Token> text = builder_.lookup().tokens();
    for (std::size_t i = 0; i < rows.shape(0) && first + i < text.size(); ++i) {
      const auto upto = text.first(first + i + 1);
      recycled_->learn(upto.last(std::min(upto.size(), kRecycledOrders)), top_tokens_of(rows, i));
    }
  }

  // The same after the context (row 0) and after each node of the last tree.
  void learn_nodes(const Array<std::int32_t, 2>& rows) {
    if (rows.shape(0) != 1 + order_.size()) throw nb::value_error("rows of another tree");
    if (recycled_ == nullptr) return;
    const nb::gil_scoped_release release;
    for (std::size_t i = 0; i < rows.shape(0); ++i)
      recycled_->learn(builder_.tail_of(i == 0 ? -1 : order_[i - 1]), top_tokens_of(rows, i));
  }

  std::size_t length() { return builder_.lookup().tokens().size(); }
  nb::bytes tail(std::size_t count) {
    const auto& text = builder_.lookup().tokens();
    const std::span<const Token> last = std::span(text).last(std::min(count, text.size()));
    return nb::bytes(reinterpret_cast<const char*>(last.data()), last.size_bytes());
  }

  void record(bool on) { builder_.record(on); }
  void limit_suffix(std::size_t tokens) { builder_.longest_suffix = tokens; }
  void learn_online(bool on) { builder_.learns_online = on; }

  // (features float32[rows, kFeatures], labels uint8[rows], ends uint32[groups]) recorded since the last call.
  nb::tuple recorded() {
    nb::tuple out = nb::make_tuple(bytes_of(builder_.recorded_features()), bytes_of(builder_.recorded_labels()),
                                   bytes_of(builder_.recorded_ends()));
    builder_.forget_recorded();
    return out;
  }

 private:
  static std::vector<EvidenceReader*> readers(const nb::list& stores) {
    std::vector<EvidenceReader*> out;
    for (nb::handle store : stores)
      out.push_back(store.is_none() ? nullptr : nb::cast<NativeEvidenceReader*>(store)->reader.get());
    if (out.size() > kMaxStores) throw nb::value_error("too many sources");
    return out;
  }

  static TopTokens top_tokens_of(const Array<std::int32_t, 2>& rows, std::size_t row) {
    TopTokens top;
    for (std::size_t i = 0; i < std::min<std::size_t>(rows.shape(1), kTopK); ++i) {
      const std::int32_t token = rows.data()[row * rows.shape(1) + i];
      if (token < 0) break;
      top.tokens[top.size++] = static_cast<Token>(token);
    }
    return top;
  }

  nb::tuple keep_;
  NativeCalibration* calibration_;
  RecycledLogits* recycled_;
  std::vector<std::int32_t> places_;
  OnlineCalibration before_;
  TreeBuilder builder_;
  std::vector<std::int32_t> order_;
};

// Of each of `readers`, evidence along the paths that a draft after `tail` may take, as bytes. `parents` and `scores`
// are those of a tree of `tokens` that other sources would draft.
nb::list collect_evidence(const std::vector<NativeEvidenceReader*>& readers, const NativeCalibration& calibration,
                          const Array<std::int32_t>& tail, const Array<std::int32_t>& tokens,
                          const Array<std::int32_t>& parents, const Array<float>& scores, std::size_t max_rows,
                          std::size_t max_suffix, std::size_t max_depth) {
  std::vector<std::string> out;
  {
    const nb::gil_scoped_release release;
    if (parents.size() != tokens.size() || scores.size() != tokens.size()) throw nb::value_error("no tree");
    std::vector<ProposedNode> proposals;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int32_t parent = parents.data()[i];
      if (parent < -1 || parent >= static_cast<std::int32_t>(i)) throw nb::value_error("no tree");
      const float above = parent < 0 ? 1 : scores.data()[parent], probability = scores.data()[i] / above;
      proposals.push_back(
          {static_cast<Token>(tokens.data()[i]), parent, probability > 0 ? std::min(probability, 1.0F) : 0});
    }
    std::vector<EvidenceReader*> own;
    for (const NativeEvidenceReader* reader : readers) own.push_back(reader->reader.get());
    thread_local EvidenceCollector collect_evidence;
    collect_evidence.run(own, &calibration.gbdt, tokens_of(tail), proposals, {max_rows, max_suffix, max_depth});
    for (std::size_t store = 0; store < own.size(); ++store)
      out.push_back(
          packed_rows(collect_evidence.paths(), own[store]->vocabulary(),
                      [&](std::size_t row) -> const Evidence& { return collect_evidence.evidence(row, store); }));
  }
  nb::list found;
  for (const std::string& rows : out) found.append(nb::bytes(rows.data(), rows.size()));
  return found;
}

// Null, or what is wrong with `rows` as evidence of at most `max_rows` paths in a vocabulary.
const char* evidence_fault(const nb::bytes& rows, std::uint64_t vocabulary, std::size_t max_rows) {
  EvidenceRows read;
  return read.read({rows.c_str(), rows.size()}, vocabulary, max_rows);
}

nb::bytes fit(const Array<float, 2>& rows, const Array<std::uint8_t>& labels, const Array<std::uint32_t>& ends,
              std::uint32_t trees, double rate, double ridge, double share) {
  if (rows.shape(1) != kFeatures || rows.shape(0) != labels.size() || ends.size() == 0 ||
      ends.data()[ends.size() - 1] != labels.size())
    throw nb::value_error("of other shapes");
  std::uint32_t row = 0;
  for (const std::uint32_t end : span_of(ends)) {  // ascending, so that none lies beyond the last, which is right
    if (end <= row || end > labels.size()) throw nb::value_error("ends that do not ascend");
    std::uint32_t right = 0;
    for (; row < end; ++row) {
      if (labels.data()[row] > 1) throw nb::value_error("a label greater than 1");
      right += labels.data()[row];
    }
    if (right > 1) throw nb::value_error("several right rows of one place");
  }
  const std::span<const float> features{rows.data(), rows.size()};
  if (!std::all_of(features.begin(), features.end(), [](float feature) { return std::isfinite(feature); }))
    throw nb::value_error("features that are not finite");
  if (!(rate > 0 && rate <= 1 && ridge >= 0 && ridge < 1e9 && share > 0 && share <= 1))
    throw nb::value_error("options out of range");
  Gbdt gbdt;
  {
    const nb::gil_scoped_release release;
    GbdtOptions options;
    options.trees = trees;
    options.rate = rate;
    options.ridge = ridge;
    options.row_share = share;
    GbdtFitter fitter(features, span_of(labels), span_of(ends), kFeatures);
    gbdt = fitter.fit(options);
  }
  return packed_of(gbdt);
}

}  // namespace

void bind_sessions(nb::module_& module) {
  module.attr("FEATURES") = kFeatures;
  module.attr("MAX_STORES") = kMaxStores;
  module.attr("TOP_K") = kTopK;
  module.attr("MOST_EVIDENCE_ROWS") = kMaxEvidenceRows;
  module.def("fit_gbdt", &fit);
  module.def("collect_evidence", &collect_evidence, nb::arg("readers"), nb::arg("calibration"), nb::arg("tail"),
             nb::arg("tokens"), nb::arg("parents"), nb::arg("scores"), nb::kw_only(), nb::arg("max_rows"),
             nb::arg("max_suffix"), nb::arg("max_depth"));
  module.def("evidence_fault", &evidence_fault);
  nb::class_<RecycledLogits>(module, "NativeRecycledLogits").def(nb::init<>()).def("__len__", &RecycledLogits::size);
  nb::class_<NativeEvidenceReader>(module, "NativeEvidenceReader").def(nb::init<const nb::list&, std::uint32_t>());
  nb::class_<NativeCalibration>(module, "NativeCalibration")
      .def(nb::init<const nb::bytes&>())
      .def_prop_rw("weights", &NativeCalibration::weights, &NativeCalibration::set_weights)
      .def_prop_ro("gbdt", [](const NativeCalibration& own) { return packed_of(own.gbdt); });
  nb::class_<NativeSession>(module, "NativeSession")
      .def(nb::init<const nb::list&, const nb::object&, const nb::object&, std::vector<std::int32_t>>(),
           nb::arg("stores"), nb::arg("calibration"), nb::arg("recycled").none(), nb::arg("places"))
      .def("prompt", &NativeSession::prompt)
      .def("give", &NativeSession::give, nb::arg("place"), nb::arg("trees").none())
      .def("add_store", &NativeSession::add_store)
      .def("give_evidence", &NativeSession::give_evidence)
      .def("draft", &NativeSession::draft)
      .def("accept", &NativeSession::accept)
      .def("learn_text", &NativeSession::learn_text)
      .def("learn_nodes", &NativeSession::learn_nodes)
      .def("forget", &NativeSession::forget)
      .def("tree_size", &NativeSession::tree_size)
      .def("length", &NativeSession::length)
      .def("tail", &NativeSession::tail)
      .def("record", &NativeSession::record)
      .def("limit_suffix", &NativeSession::limit_suffix)
      .def("learn_online", &NativeSession::learn_online)
      .def("recorded", &NativeSession::recorded);
}
