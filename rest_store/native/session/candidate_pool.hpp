// The candidates for one position of a draft tree before the best of them are chosen.
#pragma once

#include <array>

#include "session/evidence.hpp"
#include "session/prompt_lookup.hpp"
#include "session/recycled_logits.hpp"

namespace rest_store {

constexpr std::size_t kMaxStores =
    6;  // stores of one session: sources with counts, such as datastores

// The tokens that any source proposes, and the score of each by a fixed rule: a hash table by token
// over columns.
class CandidatePool {
 public:
  static constexpr std::size_t kMax =
      PromptLookup::kMaxCandidates + kRecycledOrders * kTopK +
      kMaxStores * kLevels * kContinuations;  // that all sources can have
  static constexpr std::uint8_t kUnmatched = 255;

  std::size_t size = 0;
  std::array<Token, kMax> tokens;
  std::array<std::uint32_t, kMax>
      origins;  // bit 0: prompt lookup, bit 1: recycled logits, bit 2 + i: store i
  std::array<std::uint8_t, kMax>
      matched;                     // index among the candidates of prompt lookup, or kUnmatched
  std::array<float, kMax> prior;   // probability by the rule
  std::array<float, kMax> lookup;  // by the rule from prompt lookup alone
  std::array<std::array<float, kMax>, kMaxStores> stores;  // from each store alone

  void clear(std::size_t store_count) {
    size = 0;
    store_count_ = store_count;
    if (++round_ == 0) {
      slots_.fill({});
      round_ = 1;
    }
  }

  // The row of `token` with `origin` among its origins; a new row if need be.
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
