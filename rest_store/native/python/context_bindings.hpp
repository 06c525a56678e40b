// Contexts as Python gives them: lists, tuples and arrays of integers, copied before the GIL is released.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "search/match.hpp"

namespace rest_store {

// Throws ValueError or TypeError, without saying more, for what is no context of the vocabulary: the caller explains.
class ContextReader {
 public:
  ContextReader(std::uint32_t vocabulary, std::uint32_t width) : vocabulary_(vocabulary), width_(width) {}

  // The last tokens of `context`, a list, a tuple or a 1-D integer array.
  Suffix last(nanobind::handle context, std::size_t max_suffix) const;

  // All of a sequence, which has kMaxSuffix tokens at most.
  Suffix whole(nanobind::handle tokens) const;

  // The last tokens of each context of `contexts`, a list or a 2-D integer array.
  std::vector<Suffix> batch(nanobind::handle contexts, std::size_t max_suffix) const;

 private:
  std::vector<Suffix> items(const nanobind::list& contexts, std::size_t max_suffix) const;
  std::vector<Suffix> rows(nanobind::handle contexts, std::size_t max_suffix) const;
  Token token(PyObject* item) const;
  Token within(long long value) const;

  // Copy items of `array`, the first at `first`.
  template <class AnyArray>
  void copy(const AnyArray& array, std::ptrdiff_t first, std::ptrdiff_t stride, std::span<Token> to) const;

  std::uint32_t vocabulary_;
  std::uint32_t width_;
};

}  // namespace rest_store
