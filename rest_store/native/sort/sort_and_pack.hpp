// From the symbols of a shard to the contents of its suffixes file (FORMAT.md, section 3).
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <stdexcept>

#include "search/shard_view.hpp"
#include "sort/bit_string.hpp"

namespace rest_store {

// Write the keys and the entries of a shard.
//
// `order`: the positions of all bytes of `symbols`, without their tail of eight, in the order of
// the suffixes that begin there. `width`: bytes of a symbol. `bits`: of an entry, 1 .. 30. `keys`
// and `entries` are written; `entries` has room for whole words of eight bytes and a tail of eight
// zeros. Throws std::out_of_range if the sizes are not those of these symbols.
inline void pack_suffixes(std::span<const std::int32_t> order,
                          std::span<const std::uint8_t> symbols, std::uint32_t width,
                          std::uint32_t bits, std::span<std::uint64_t> keys,
                          std::span<std::uint8_t> entries) {
  const std::size_t size = order.size();
  if (symbols.size() != size + 8 || entries.size() < 8 || entries.size() % 8 != 0 || bits < 1 ||
      bits > 30)
    throw std::out_of_range("arrays of other sizes");
  const std::uint64_t separator = (std::uint64_t{1} << (8 * width)) - 1;
  const std::uint64_t room = 8 * (entries.size() - 8) / bits;
  std::uint64_t rank = 0;
  BitString packed(entries.data(), bits);
  for (const std::int32_t at : order) {
    const auto offset = static_cast<std::uint32_t>(at);
    if (offset >= size) throw std::out_of_range("an offset past the end");
    if (offset % width != 0) continue;
    // Separators come last. Whether they have begun is tested at each key, and near the end of the
    // room: reading the symbols at every rank would take long.
    if (rank % kKeyStride == 0 || rank + 64 > room) {
      const std::uint64_t key = load_big(symbols.data() + offset);
      if (key >> (64 - 8 * width) == separator) break;
      if (rank == room || rank / kKeyStride >= keys.size())
        throw std::out_of_range("arrays of other sizes");
      if (rank % kKeyStride == 0) keys[rank / kKeyStride] = key;
    }
    ++rank;
    packed.append(offset / width);
  }
  packed.finish();
}

// `divsufsort` of libdivsufsort: writes the positions of all bytes of a text, in the order of the
// suffixes that begin there. Returns 0 on success.
using ByteSorter = std::int32_t (*)(const std::uint8_t*, std::int32_t*, std::int32_t);

// Sort the suffixes of `symbols`, which end with a tail of eight bytes, by `sorter`, and pack them
// as pack_suffixes() does. Returns the result of `sorter`. Throws std::out_of_range if the sizes
// are not those of these symbols, std::bad_alloc if there is not enough memory.
inline std::int32_t sort_and_pack(ByteSorter sorter, std::span<const std::uint8_t> symbols,
                                  std::uint32_t width, std::uint32_t bits,
                                  std::span<std::uint64_t> keys, std::span<std::uint8_t> entries) {
  if (symbols.size() < 8 ||
      symbols.size() - 8 > std::size_t{std::numeric_limits<std::int32_t>::max()})
    throw std::out_of_range("symbols of another size");
  const std::size_t size = symbols.size() - 8;
  const auto order = std::make_unique_for_overwrite<std::int32_t[]>(size);
  const std::int32_t status = sorter(symbols.data(), order.get(), static_cast<std::int32_t>(size));
  if (status == 0) pack_suffixes({order.get(), size}, symbols, width, bits, keys, entries);
  return status;
}

}  // namespace rest_store
