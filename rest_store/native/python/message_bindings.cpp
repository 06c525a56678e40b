// Python's view of plain messages: conversions, no algorithm.

#include "python/message_bindings.hpp"

#include "python/messages.hpp"

namespace nb = nanobind;
using namespace rest_store;

namespace {

std::string_view view(const nb::bytes& data) { return {data.c_str(), data.size()}; }

nb::object number(std::uint32_t value) {
  const nb::object made = nb::steal(PyLong_FromUnsignedLong(value));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

// Appends the tokens of a plain step to `tail`, keeps its last 64, returns the sequence number; else None, unchanged.
nb::object read_step(const nb::bytes& data, nb::list tail) {
  const auto step = plain_step(view(data));
  if (!step) return nb::none();
  for (std::size_t i = 0; i < step->tokens.size(); ++i) tail.append(number(step->tokens[i]));
  const Py_ssize_t excess = PyList_GET_SIZE(tail.ptr()) - static_cast<Py_ssize_t>(LastTokens::kKept);
  if (excess > 0 && PyList_SetSlice(tail.ptr(), 0, excess, nullptr) != 0) throw nb::python_error();
  return nb::steal(PyLong_FromUnsignedLongLong(step->sequence));
}

// (bytes of selection and limits, last 64 tokens) of a plain DraftRequest; else None.
nb::object read_draft(const nb::bytes& data) {
  const auto draft = plain_draft(view(data));
  if (!draft) return nb::none();
  nb::list tokens;
  for (std::size_t i = 0; i < draft->tokens.size(); ++i) tokens.append(number(draft->tokens[i]));
  return nb::make_tuple(nb::bytes(draft->head.data(), draft->head.size()), tokens);
}

nb::bytes tree_message(const nb::bytes& nodes, std::uint32_t match_length, std::uint64_t match_count,
                       const nb::bytes& rest, std::uint64_t sequence) {
  const TreeMessage message(view(nodes), match_length, match_count, view(rest), sequence);
  auto out = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(message.size())));
  if (!out.is_valid()) throw nb::python_error();
  message.write(PyBytes_AS_STRING(out.ptr()));
  return out;
}

}  // namespace

void bind_messages(nb::module_& module) {
  module.def("read_step", &read_step);
  module.def("read_draft", &read_draft);
  module.def("tree_message", &tree_message);
}
