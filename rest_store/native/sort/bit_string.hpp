// The bit string of a suffixes file (FORMAT.md, section 3).
#pragma once

#include <cstdint>
#include <cstring>

namespace rest_store {

// Writes entries of `bits` bits each, 1 .. 30, from `out` on: whole words of eight bytes.
class BitString {
 public:
  BitString(std::uint8_t* out, std::uint32_t bits) : out_(out), bits_(bits) {}

  void append(std::uint64_t entry) {
    word_ |= entry << used_;
    used_ += bits_;
    if (used_ < 64) return;
    put_word();
    used_ -= 64;
    word_ = used_ == 0 ? 0 : entry >> (bits_ - used_);
  }

  // Write the last word, and a tail of eight zeros.
  void finish() {
    if (used_ > 0) put_word();
    std::memset(out_, 0, 8);
  }

 private:
  void put_word() {
    std::memcpy(out_, &word_, 8);
    out_ += 8;
  }

  std::uint8_t* out_;
  std::uint64_t word_ = 0;
  unsigned used_ = 0;  // bits of `word_`
  std::uint32_t bits_;
};

}  // namespace rest_store
