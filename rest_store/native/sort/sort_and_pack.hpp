// Sorting the symbols of a shard that is to be read from memory.
#pragma once

#include <limits>
#include <memory>

#include "sort/pack_suffixes.hpp"

namespace rest_store {

// `divsufsort` of libdivsufsort: writes the positions of all bytes of a text, in the order of the suffixes that begin
// there. Returns 0 on success.
using ByteSorter = std::int32_t (*)(const std::uint8_t*, std::int32_t*, std::int32_t);

// Sort the suffixes of `symbols`, which end with a tail of eight bytes, by `sorter`, and pack them as pack_suffixes()
// does. Returns what `sorter` does. Throws std::out_of_range if the sizes are not those of these symbols,
// std::bad_alloc if there is not enough memory.
inline std::int32_t sort_and_pack(ByteSorter sorter, std::span<const std::uint8_t> symbols, std::uint32_t width,
                                  std::uint32_t bits, std::span<std::uint64_t> keys, std::span<std::uint8_t> entries) {
  if (symbols.size() < 8 || symbols.size() - 8 > std::size_t{std::numeric_limits<std::int32_t>::max()})
    throw std::out_of_range("symbols of another size");
  const std::size_t size = symbols.size() - 8;
  const auto order = std::make_unique_for_overwrite<std::int32_t[]>(size);
  const std::int32_t status = sorter(symbols.data(), order.get(), static_cast<std::int32_t>(size));
  if (status == 0) pack_suffixes({{order.get(), size}, symbols, width}, bits, keys, entries);
  return status;
}

}  // namespace rest_store
