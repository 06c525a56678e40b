// Sorting the symbols of a shard that is to be read from memory.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <limits>
#include <new>

#include "sort/pack_suffixes.hpp"

namespace rest_store {

// `divsufsort` of libdivsufsort: writes the positions of all bytes of a text, in the order of the suffixes that begin
// there. Returns 0 on success.
using ByteSorter = std::int32_t (*)(const std::uint8_t*, std::int32_t*, std::int32_t);

// Room for `count` integers of any content. Much room has pages of its own, since the heap would keep some of them.
class IntegerRoom {
 public:
  explicit IntegerRoom(std::size_t count) : bytes_(count * sizeof(std::int32_t)) {
    void* start = is_mapped() ? mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                              : std::malloc(bytes_ + 1);
    if (start == (is_mapped() ? MAP_FAILED : nullptr)) throw std::bad_alloc();
    values_ = {static_cast<std::int32_t*>(start), count};
#ifdef MADV_HUGEPAGE
    if (is_mapped()) madvise(start, bytes_, MADV_HUGEPAGE);  // a sort writes all over it
#endif
  }
  IntegerRoom(const IntegerRoom&) = delete;
  IntegerRoom& operator=(const IntegerRoom&) = delete;
  ~IntegerRoom() {
    if (is_mapped()) munmap(values_.data(), bytes_);
    else std::free(values_.data());
  }

  std::span<std::int32_t> values() const { return values_; }

 private:
  static constexpr std::size_t kOwnPages = std::size_t{1} << 17;  // bytes

  bool is_mapped() const { return bytes_ >= kOwnPages; }

  std::size_t bytes_;
  std::span<std::int32_t> values_;
};

// Sort the suffixes of `symbols`, which end with a tail of eight bytes, by `sorter`, and pack them as pack_suffixes()
// does. Returns what `sorter` does. Throws std::out_of_range if the sizes are not those of these symbols,
// std::bad_alloc if there is not enough memory.
inline std::int32_t sort_and_pack(ByteSorter sorter, std::span<const std::uint8_t> symbols, std::uint32_t width,
                                  std::uint32_t bits, std::span<std::uint64_t> keys, std::span<std::uint8_t> entries) {
  if (symbols.size() < 8 || symbols.size() - 8 > std::size_t{std::numeric_limits<std::int32_t>::max()})
    throw std::out_of_range("symbols of another size");
  const IntegerRoom order(symbols.size() - 8);
  const std::int32_t status =
      sorter(symbols.data(), order.values().data(), static_cast<std::int32_t>(order.values().size()));
  if (status == 0) pack_suffixes({order.values(), symbols, width}, bits, keys, entries);
  return status;
}

}  // namespace rest_store
