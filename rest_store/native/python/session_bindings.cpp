// Python bindings of draft sessions, alone and in batches.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/bindings.hpp"
#include "python/native_session.hpp"
#include "session/batch.hpp"
#include "session/merge.hpp"
#include "session/top_tokens.hpp"

using namespace rest_store;

namespace {

// The `count` most likely tokens of each row of logits: int32[n, count], -1 where there are fewer.
nb::bytes top_tokens_of(const nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>& logits,
                        std::size_t count) {
  const std::size_t rows = logits.shape(0), width = logits.shape(1);
  if (width > 1 && logits.stride(1) != 1) throw nb::value_error("rows with gaps");
  if (count == 0 || count > kTopK) throw nb::value_error("count out of range");
  constexpr std::size_t kTogether = 4;  // rows that a thread takes at a time
  std::vector<std::int32_t> out(rows * count, -1);
  {
    const nb::gil_scoped_release release;
    on_all_cores((rows + kTogether - 1) / kTogether, [&](std::size_t group) {
      for (std::size_t row = group * kTogether; row < std::min(rows, (group + 1) * kTogether);
           ++row)
        top_tokens({logits.data() + static_cast<std::ptrdiff_t>(row) * logits.stride(0), width},
                   std::span(out).subspan(row * count, count));
    });
  }
  return bytes_of(out);
}

// A view of the columns that scored_columns() returns. ValueError: their lengths differ.
ScoredTree scored_tree(const nb::bytes& columns, const nb::bytes& scores,
                       const nb::bytes& origins) {
  const std::size_t size = origins.size();
  if (columns.size() != kNodeBytes * size || scores.size() != sizeof(float) * size)
    throw nb::value_error("columns of unequal length");
  return {{reinterpret_cast<const Token*>(columns.c_str() + kTokensAt * size), size},
          {reinterpret_cast<const std::int32_t*>(columns.c_str() + kParentsAt * size), size},
          {reinterpret_cast<const float*>(scores.c_str()), size},
          {reinterpret_cast<const std::uint8_t*>(origins.c_str()), size}};
}

// The merged tree, as scored_columns(), and for each tree the indices of its nodes in the merged
// one, int32[N]. ValueError: they are no trees.
nb::tuple merge_trees(const std::vector<std::tuple<nb::bytes, nb::bytes, nb::bytes>>& trees,
                      std::size_t max_nodes, const Array<double>& costs, bool is_chain,
                      const Array<std::int32_t>& verified, std::size_t length) {
  std::vector<ScoredTree> scored;
  for (const auto& [columns, scores, origins] : trees)
    scored.push_back(scored_tree(columns, scores, origins));
  const MergedTree merged(scored, draft_options(max_nodes, costs, is_chain, verified, length));
  nb::list nodes;
  for (std::size_t tree = 0; tree < trees.size(); ++tree)
    nodes.append(bytes_of(merged.nodes_of(tree)));
  return nb::make_tuple(
      scored_columns(merged.nodes(), [](const DraftNode& node) { return node.origins; }), nodes);
}

// The next draft of each of different sessions, as `NativeSession::draft`, for the options of each.
nb::list draft_all(const std::vector<NativeSession*>& sessions,
                   const std::vector<std::tuple<std::size_t, Array<double>, bool,
                                                Array<std::int32_t>, std::size_t>>& options) {
  if (options.size() != sessions.size()) throw nb::value_error("of unequal length");
  {
    const nb::gil_scoped_release release;
    std::vector<BatchDraft> drafts;
    for (std::size_t i = 0; i < sessions.size(); ++i)
      drafts.push_back({&sessions[i]->begin(), std::apply(draft_options, options[i])});
    build_all(drafts);
  }
  nb::list out;
  for (const NativeSession* session : sessions) out.append(session->tree());
  return out;
}

// Append accepted tokens to each of different sessions, with the rows of each. The sessions come
// one after the other, so that a shared calibration learns in their order. ValueError, before
// anything is appended: a session cannot have so many rows.
void accept_all(const std::vector<NativeSession*>& sessions,
                const std::vector<Array<std::int32_t>>& tokens,
                const std::vector<std::optional<TopK>>& top_k,
                const std::vector<std::optional<TopK>>& node_top_k) {
  const std::size_t count = sessions.size();
  if (tokens.size() != count || top_k.size() != count || node_top_k.size() != count)
    throw nb::value_error("of unequal length");
  std::vector<AcceptedRows> rows;
  for (std::size_t i = 0; i < count; ++i)
    rows.push_back(sessions[i]->accepted_rows(tokens[i].size(), top_k[i], node_top_k[i]));
  const nb::gil_scoped_release release;
  for (std::size_t i = 0; i < count; ++i) sessions[i]->accept(tokens_of(tokens[i]), rows[i]);
}

}  // namespace

void bind_sessions(nb::module_& module) {
  module.attr("MAX_STORES") = kMaxStores;
  module.attr("TOKEN_MEMORY") = PromptLookup::kTokenMemory;
  module.attr("EVIDENCE_MEMORY") = sizeof(Evidence);  // of each node and store
  module.attr("NODE_MEMORY") = sizeof(SourceEvidence);
  module.def("top_tokens", &top_tokens_of);
  module.def("draft_all", &draft_all);
  module.def("accept_all", &accept_all);
  module.def("merge_trees", &merge_trees);
  nb::class_<SuffixCache>(module, "SuffixCache").def(nb::init<std::size_t, bool>());
  nb::class_<NativeEvidenceReader>(module, "NativeEvidenceReader")
      .def(nb::init<const nb::list&, std::uint32_t, bool, std::shared_ptr<SuffixCache>,
                    std::shared_ptr<Sharing>>(),
           nb::arg("shards"), nb::arg("vocabulary_size"), nb::arg("is_live"), nb::arg("cache"),
           nb::arg("sharing") = nb::none());
  nb::class_<RecycledLogits>(module, "NativeRecycledLogits")
      .def(nb::init<>())
      .def(nb::init<const RecycledLogits&>())
      .def("__len__", &RecycledLogits::size);
  nb::class_<NativeSession>(module, "NativeSession")
      .def(nb::init<NativeCalibration&>(), nb::keep_alive<1, 2>())
      .def("use_prompt_lookup", &NativeSession::use_prompt_lookup)
      .def("use_recycled_logits", &NativeSession::use_recycled_logits, nb::keep_alive<1, 3>())
      .def("use_filter", &NativeSession::use_filter)
      .def("add_store", &NativeSession::add_store)
      .def("set_reader", &NativeSession::set_reader)
      .def("remove_store", &NativeSession::remove_store)
      .def("limit_tokens", &NativeSession::limit_tokens)
      .def("learn_online", &NativeSession::learn_online)
      .def("add_reference", &NativeSession::add_reference)
      .def("prompt", &NativeSession::prompt)
      .def("draft", &NativeSession::draft, nb::arg("max_nodes"), nb::arg("costs"),
           nb::arg("is_chain"), nb::arg("verified"), nb::arg("length"))
      .def("forget", &NativeSession::forget)
      .def("length", &NativeSession::length)
      .def("text", &NativeSession::text)
      .def("longest_probe", &NativeSession::longest_probe)
      .def("record", &NativeSession::record)
      .def("recorded", &NativeSession::recorded);
}
