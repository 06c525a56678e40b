#include "python/context_bindings.hpp"

#include <nanobind/ndarray.h>

namespace nb = nanobind;

namespace rest_store {
namespace {

constexpr std::size_t kAsked = 4;  // contexts whose items are on their way while one is read

template <int kDimensions>
using Array = nb::ndarray<nb::ndim<kDimensions>, nb::ro, nb::device::cpu>;

template <int kDimensions>
Array<kDimensions> array_of(nb::handle value) {
  Array<kDimensions> array;
  if (!nb::try_cast(value, array)) throw nb::type_error("not an array of so many dimensions");
  return array;
}

// How many of a context's `size` tokens are read.
std::size_t read_of(std::size_t size, std::size_t max_suffix) {
  if (size == 0) throw nb::value_error("context without tokens");
  return std::min({size, max_suffix, kMaxSuffix});
}

// Ask memory for the last items of `context`, if it is a list: each is an object somewhere.
void ask_for_items(nb::handle context, std::size_t max_suffix) {
  if (!PyList_CheckExact(context.ptr())) return;
  const auto size = static_cast<std::size_t>(PyList_GET_SIZE(context.ptr()));
  for (std::size_t i = size - std::min(size, max_suffix); i < size; ++i)
    prefetch(PyList_GET_ITEM(context.ptr(), static_cast<Py_ssize_t>(i)));
}

}  // namespace

template <class AnyArray>
void ContextReader::copy(const AnyArray& array, std::ptrdiff_t first, std::ptrdiff_t stride,
                         std::span<Token> to) const {
  const auto copy_as = [&]<class Integer>(Integer) {
    const Integer* from = static_cast<const Integer*>(array.data()) + first;
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = within(static_cast<std::int64_t>(from[static_cast<std::ptrdiff_t>(i) * stride]));
  };
  if (array.dtype() == nb::dtype<std::int64_t>()) copy_as(std::int64_t{});
  else if (array.dtype() == nb::dtype<std::int32_t>()) copy_as(std::int32_t{});
  else if (array.dtype() == nb::dtype<std::uint16_t>()) copy_as(std::uint16_t{});
  else if (array.dtype() == nb::dtype<std::uint32_t>()) copy_as(std::uint32_t{});
  else throw nb::type_error("context of an unexpected type");
}

Suffix ContextReader::last(nb::handle context, std::size_t max_suffix) const {
  Token tokens[kMaxSuffix];
  if (PyList_CheckExact(context.ptr()) || PyTuple_CheckExact(context.ptr())) {
    const auto size = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(context.ptr()));
    const std::size_t count = read_of(size, max_suffix);
    for (std::size_t i = 0, place = size - count; i < count; ++i, ++place) {
      // Taking an item as an index may run Python code, which may shorten the list.
      if (place >= static_cast<std::size_t>(PySequence_Fast_GET_SIZE(context.ptr())))
        throw nb::value_error("context that changes while it is read");
      tokens[i] = token(PySequence_Fast_GET_ITEM(context.ptr(), static_cast<Py_ssize_t>(place)));
    }
    return Suffix(tokens, count, width_);
  }
  const auto array = array_of<1>(context);
  const std::size_t count = read_of(array.shape(0), max_suffix);
  copy(array, static_cast<std::ptrdiff_t>(array.shape(0) - count) * array.stride(0), array.stride(0), {tokens, count});
  return Suffix(tokens, count, width_);
}

Suffix ContextReader::whole(nb::handle tokens) const {
  if (nb::len(tokens) > kMaxSuffix) throw nb::value_error("sequence of unusable length");
  return last(tokens, kMaxSuffix);
}

std::vector<Suffix> ContextReader::batch(nb::handle contexts, std::size_t max_suffix) const {
  return PyList_CheckExact(contexts.ptr()) ? items(nb::borrow<nb::list>(contexts), max_suffix)
                                           : rows(contexts, max_suffix);
}

std::vector<Suffix> ContextReader::items(const nb::list& contexts, std::size_t max_suffix) const {
  std::vector<Suffix> out;
  out.reserve(contexts.size());
  for (std::size_t i = 0; i < std::min(kAsked, contexts.size()); ++i) ask_for_items(contexts[i], max_suffix);
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    if (i + kAsked < contexts.size()) ask_for_items(contexts[i + kAsked], max_suffix);
    out.push_back(last(contexts[i], max_suffix));
  }
  return out;
}

std::vector<Suffix> ContextReader::rows(nb::handle contexts, std::size_t max_suffix) const {
  const auto array = array_of<2>(contexts);
  std::vector<Suffix> out;
  if (array.shape(0) == 0) return out;
  out.reserve(array.shape(0));
  const std::size_t count = read_of(array.shape(1), max_suffix);
  const auto skip = static_cast<std::ptrdiff_t>(array.shape(1) - count) * array.stride(1);
  for (std::size_t row = 0; row < array.shape(0); ++row) {
    Token tokens[kMaxSuffix];
    copy(array, static_cast<std::ptrdiff_t>(row) * array.stride(0) + skip, array.stride(1), {tokens, count});
    out.emplace_back(tokens, count, width_);
  }
  return out;
}

Token ContextReader::token(PyObject* item) const {
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
  if (PyLong_CheckExact(item) && Py_SIZE(item) == 1) {  // most are
    const digit value = reinterpret_cast<const PyLongObject*>(item)->ob_digit[0];
    if (value < vocabulary_) return value;
  }
#elif PY_VERSION_HEX >= 0x030C0000
  if (PyLong_CheckExact(item) && PyUnstable_Long_IsCompact(reinterpret_cast<const PyLongObject*>(item))) {
    const Py_ssize_t value = PyUnstable_Long_CompactValue(reinterpret_cast<const PyLongObject*>(item));
    if (value >= 0 && value < static_cast<Py_ssize_t>(vocabulary_)) return static_cast<Token>(value);
  }
#endif
  long long value = -1;
  if (PyLong_CheckExact(item)) {  // no Python code runs, so the item stays without a reference of ours
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(item, &overflow);
  } else {
    const nb::object kept = nb::borrow(item), number = nb::steal(PyNumber_Index(item));
    if (!number.is_valid()) throw nb::python_error();
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  }
  return within(value);
}

Token ContextReader::within(long long value) const {
  if (value < 0 || value >= static_cast<long long>(vocabulary_)) throw nb::value_error("token outside the vocabulary");
  return static_cast<Token>(value);
}

}  // namespace rest_store
