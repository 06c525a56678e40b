// Python bindings of the readers of evidence.

#include <nanobind/stl/shared_ptr.h>

#include "python/bindings.hpp"
#include "python/native_evidence_reader.hpp"

namespace nb = nanobind;
using namespace rest_store;

void bind_evidence(nb::module_& module) {
  module.attr("EVIDENCE_MEMORY") = sizeof(Evidence);  // of each node and store
  nb::class_<SuffixCache>(module, "SuffixCache").def(nb::init<std::size_t, bool>());
  nb::class_<NativeEvidenceReader>(module, "NativeEvidenceReader")
      .def(nb::init<const nb::list&, std::uint32_t, bool, std::shared_ptr<SuffixCache>>());
}
