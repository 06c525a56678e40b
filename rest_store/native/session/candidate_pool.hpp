// The candidates for one position of a draft tree before the best of them are chosen.
#pragma once

#include <array>

#include "session/evidence.hpp"
#include "session/prompt_lookup.hpp"
#include "session/recycled_logits.hpp"

namespace rest_store {

// Stores of one session: sources with counts, such as datastores.
constexpr std::size_t kMaxStores = 6;

// The tokens that any source proposes, and the prior of each: a hash table by token over columns.
// Not thread-safe.
class CandidatePool {
 public:
  // Most candidates that all sources together can propose.
  static constexpr std::size_t kMax = PromptLookup::kMaxCandidates + kRecycledOrders * kTopK +
                                      kMaxStores * kLevels * kContinuations;
  static constexpr std::uint8_t kUnmatched = 255;

  std::size_t size = 0;
  std::array<Token, kMax> tokens;
  // Bit 0: prompt lookup, bit 1: recycled logits, bit 2 + i: store i.
  std::array<std::uint32_t, kMax> origins;
  // The index among the candidates of prompt lookup, or kUnmatched.
  std::array<std::uint8_t, kMax> matched;
  std::array<float, kMax> prior;   // the probability by the fixed rule of CandidateTable
  std::array<float, kMax> lookup;  // the same from prompt lookup alone
  std::array<std::array<float, kMax>, kMaxStores> stores;  // the same from each store alone

  // Remove all candidates, in constant time. `store_count`: stores of the next position.
  void clear(std::size_t store_count) {
    size = 0;
    store_count_ = store_count;
    if (++round_ == 0) {
      slots_.fill({});
      round_ = 1;
    }
  }

  // Add a candidate of a source, whose bit in `origins` has number `origin`. Returns its row: the
  // one that `token` has already, or a new one of zeros.
  std::uint16_t add(Token token, std::uint32_t origin) {
    Slot& slot = slots_[slot_of(token)];
    if (slot.round != round_) {
      slot = {token, round_, static_cast<std::uint16_t>(size)};
      tokens[size] = token;
      origins[size] = 0;
      matched[size] = kUnmatched;
      prior[size] = lookup[size] = 0;
      for (std::size_t store = 0; store < store_count_; ++store) stores[store][size] = 0;
      ++size;
    }
    origins[slot.row] |= std::uint32_t{1} << origin;
    return slot.row;
  }

 private:
  struct Slot {
    Token token = 0;
    std::uint16_t round = 0, row = 0;  // of another round: free
  };

  // Where `token` is, or where it would be.
  std::size_t slot_of(Token token) const {
    std::size_t slot = (token * 0x9E3779B1U) >> (32 - kSlotBits);
    while (slots_[slot].round == round_ && slots_[slot].token != token)
      slot = (slot + 1) % slots_.size();
    return slot;
  }

  static constexpr unsigned kSlotBits = 11;
  static_assert(2 * kMax <= std::size_t{1} << kSlotBits);

  std::array<Slot, std::size_t{1} << kSlotBits> slots_{};
  std::uint16_t round_ = 0;
  std::size_t store_count_ = 0;
};

}  // namespace rest_store
