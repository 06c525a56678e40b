// Python bindings of calibrations and their fitting: conversions and the release of the GIL, no
// algorithm.

#include <nanobind/stl/vector.h>

#include "python/bindings.hpp"
#include "python/native_calibration.hpp"
#include "session/candidates.hpp"
#include "session/gbdt_fit.hpp"

namespace rest_store {

Gbdt gbdt_of(const nb::bytes& packed) {
  constexpr std::size_t kHead = sizeof(float);
  if (packed.size() < kHead || (packed.size() - kHead) % sizeof(ObliviousTree) != 0)
    throw nb::value_error("of a wrong size");
  Gbdt gbdt;
  std::memcpy(&gbdt.base, packed.c_str(), kHead);
  gbdt.trees.resize((packed.size() - kHead) / sizeof(ObliviousTree));
  std::copy_n(packed.c_str() + kHead, packed.size() - kHead,
              reinterpret_cast<char*>(gbdt.trees.data()));
  for (const ObliviousTree& tree : gbdt.trees)
    for (const std::uint16_t feature : tree.features)
      if (feature >= kFeatures) throw nb::value_error("of other features");
  if (!gbdt.finite()) throw nb::value_error("of numbers that are not finite");
  return gbdt;
}

}  // namespace rest_store

using namespace rest_store;

namespace {

nb::bytes fit_gbdt(const Array<float, 2>& rows, const Array<std::uint8_t>& labels,
                   const Array<std::uint32_t>& ends, std::uint32_t trees, double rate,
                   double share) {
  if (rows.shape(1) != kFeatures || rows.shape(0) != labels.size() || ends.size() == 0 ||
      ends.data()[ends.size() - 1] != labels.size())
    throw nb::value_error("of other shapes");
  std::uint32_t row = 0;
  // They have to ascend, so that none exceeds the last one, which was checked.
  for (const std::uint32_t end : span_of(ends)) {
    if (end <= row || end > labels.size()) throw nb::value_error("ends that do not ascend");
    std::uint32_t right = 0;
    for (; row < end; ++row) {
      if (labels.data()[row] > 1) throw nb::value_error("a label greater than 1");
      right += labels.data()[row];
    }
    if (right > 1) throw nb::value_error("several right rows of one position");
  }
  const std::span<const float> features{rows.data(), rows.size()};
  if (!std::all_of(features.begin(), features.end(),
                   [](float feature) { return std::isfinite(feature); }))
    throw nb::value_error("features that are not finite");
  if (!(rate > 0 && rate <= 1 && share > 0 && share <= 1))
    throw nb::value_error("options out of range");
  Gbdt gbdt;
  {
    const nb::gil_scoped_release release;
    const GbdtOptions options{trees, rate, share};
    gbdt = GbdtFitter(features, span_of(labels), span_of(ends), kFeatures).fit(options);
  }
  std::vector<char> out(sizeof(float) + gbdt.trees.size() * sizeof(ObliviousTree));
  std::memcpy(out.data(), &gbdt.base, sizeof(float));
  std::copy_n(reinterpret_cast<const char*>(gbdt.trees.data()), out.size() - sizeof(float),
              out.data() + sizeof(float));
  return bytes_of(out);
}

// The log odds of rows of features by the trees of frozen stores, as float32[rows]: 16 rows at once
// or 32, with one of INSTRUCTIONS. For tests.
nb::bytes log_odds(const NativeCalibration& calibration, const Array<float, 2>& rows, bool is_wide,
                   std::size_t instructions) {
  const auto chosen = static_cast<Instructions>(instructions);
  if (rows.shape(1) != kFeatures || instructions > 2 || !has(chosen))
    throw nb::value_error("of another kind");
  const std::size_t together = is_wide ? 2 * kLanes : kLanes;
  std::vector<float> out((rows.shape(0) + together - 1) / together * together);
  IntegerTrees::Scratch scratch;
  for (std::size_t first = 0; first < rows.shape(0); first += together) {
    std::vector<float> columns(kFeatures * kColumn);
    for (std::size_t row = first; row < std::min(rows.shape(0), first + together); ++row)
      for (std::size_t feature = 0; feature < kFeatures; ++feature)
        columns[feature * kColumn + row - first] = rows.data()[row * kFeatures + feature];
    calibration.trees().fitted.frozen.evaluate(columns.data(), is_wide, &out[first], scratch,
                                               chosen);
  }
  out.resize(rows.shape(0));
  return bytes_of(out);
}

}  // namespace

void bind_calibrations(nb::module_& module) {
  module.attr("FEATURES") = kFeatures;
  nb::list instructions;  // that this machine has
  for (std::size_t i = 0; i < 3; ++i)
    if (has(static_cast<Instructions>(i))) instructions.append(i);
  module.attr("INSTRUCTIONS") = instructions;
  module.def("fit_gbdt", &fit_gbdt);
  nb::class_<NativeCalibration>(module, "NativeCalibration")
      .def(nb::init<const nb::bytes&, const nb::bytes&, const nb::bytes&>())
      .def(nb::init<const NativeCalibration&>())
      .def("log_odds", &log_odds)
      .def_prop_rw("weights", &NativeCalibration::weights, &NativeCalibration::set_weights)
      .def_prop_ro(
          "gbdt",
          [](const NativeCalibration& calibration) { return calibration.trees().frozen_gbdt; })
      .def_prop_ro(
          "live_gbdt",
          [](const NativeCalibration& calibration) { return calibration.trees().live_gbdt; })
      .def_prop_ro("text_gbdt", [](const NativeCalibration& calibration) {
        return calibration.trees().text_gbdt;
      });
}
