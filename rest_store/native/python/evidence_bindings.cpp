// Python bindings of evidence: conversions and the release of the GIL, no algorithm.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "python/arrays.hpp"
#include "python/bindings.hpp"
#include "python/native_calibration.hpp"
#include "python/native_evidence_reader.hpp"
#include "session/collect_evidence.hpp"

using namespace rest_store;

namespace {

// The evidence of each of `readers` as bytes, along the paths that a draft after `tail` may take. `parents` and
// `scores` are those of the tree of `tokens` that other sources would draft.
nb::list collect_evidence(const std::vector<NativeEvidenceReader*>& readers, const NativeCalibration& calibration,
                          const Array<std::int32_t>& tail, const Array<std::int32_t>& tokens,
                          const Array<std::int32_t>& parents, const Array<float>& scores, std::size_t max_nodes,
                          std::size_t max_rows, std::size_t max_suffix) {
  std::vector<std::string> packed;
  {
    const nb::gil_scoped_release release;
    if (parents.size() != tokens.size() || scores.size() != tokens.size())
      throw nb::value_error("columns of unequal length");
    if (readers.size() > kMaxStores) throw nb::value_error("more datastores than a session can hold");
    std::vector<ProposedNode> proposals;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int32_t parent = parents.data()[i];
      if (parent < -1 || parent >= static_cast<std::int32_t>(i)) throw nb::value_error("a parent after its child");
      const float above = parent < 0 ? 1 : scores.data()[parent], probability = scores.data()[i] / above;
      proposals.push_back(
          {static_cast<Token>(tokens.data()[i]), parent, probability > 0 ? std::min(probability, 1.0F) : 0});
    }
    std::vector<EvidenceReader*> evidence_readers;
    for (const NativeEvidenceReader* reader : readers) evidence_readers.push_back(reader->reader.get());
    thread_local EvidenceCollector collector;
    collector.collect(evidence_readers, calibration.trees->fitted, tokens_of(tail), proposals,
                      {max_nodes, max_rows, max_suffix});
    for (std::size_t store = 0; store < evidence_readers.size(); ++store)
      packed.push_back(packed_rows(collector.paths(), evidence_readers[store]->vocabulary(),
                                   [&](std::size_t row) -> const Evidence& { return collector.evidence(row, store); }));
  }
  nb::list out;
  for (const std::string& rows : packed) out.append(nb::bytes(rows.data(), rows.size()));
  return out;
}

// Null, or what is wrong with `rows` as evidence of at most `max_rows` paths in a vocabulary.
const char* evidence_fault(const nb::bytes& rows, std::uint64_t vocabulary, std::size_t max_rows) {
  thread_local EvidenceRows read;  // keeps its memory
  return read.read({rows.c_str(), rows.size()}, vocabulary, max_rows);
}

}  // namespace

void bind_evidence(nb::module_& module) {
  module.attr("EVIDENCE_MEMORY") = sizeof(Evidence);  // of each node and store
  module.def("collect_evidence", &collect_evidence, nb::arg("readers"), nb::arg("calibration"), nb::arg("tail"),
             nb::arg("tokens"), nb::arg("parents"), nb::arg("scores"), nb::kw_only(), nb::arg("max_nodes"),
             nb::arg("max_rows"), nb::arg("max_suffix"));
  module.def("evidence_fault", &evidence_fault);
  nb::class_<SuffixCache>(module, "SuffixCache").def(nb::init<std::size_t, bool>());
  nb::class_<NativeEvidenceReader>(module, "NativeEvidenceReader")
      .def(nb::init<const nb::list&, std::uint32_t, bool, std::shared_ptr<SuffixCache>>());
}
