// What all sources say of the next token of one context, as one table: a row for each token that any source proposes,
// a column for each feature that the calibration reads.
#pragma once

#include <bit>

#include "session/evidence.hpp"
#include "session/gbdt.hpp"
#include "session/prompt_lookup.hpp"
#include "session/recycled_logits.hpp"

namespace rest_store {

constexpr std::size_t kCandidates = 32;  // tokens of one context that are weighed
constexpr std::size_t kStoreSlots = 6;   // suffix lengths of a datastore that are weighed: longest, between, 4, 3, 2, 1

// The columns of the table.
enum Feature : std::size_t {
  kDepth,
  kParentScore,
  kParentProbability,
  kMomentum,
  kPrior,
  kPriorRank,
  kPriorRival,
  kPriorAbove,
  kAgreement,
  kOccurrences,
  kLastSeen,
  kLookupLongest,
  kLookupLength,
  kLookupAge,
  kLookupWritten,
  kLookupShare1,
  kLookupShare2,
  kLookupShare4,
  kLookupCount1,
  kLookupCount2,
  kLookupCount4,
  kLookupHitRate,
  kLookupBlend,
  kRecycledRank1,
  kRecycledRank2,
  kRecycledRank3,
  kRecycledHitRate,
  kFirst,  // of the first datastore; then of the second
};
enum StoreFeature : std::size_t {
  kLength,
  kHitRate,
  kBetween,
  kBlend,
  kShares,
  kCounts = kShares + kStoreSlots,
  kStoreFeatures = kCounts + kStoreSlots
};
constexpr std::size_t kMaxStores = 6;  // datastores of one session
constexpr std::size_t kStores = 2;     // datastores told apart; any more are weighed by the two best
constexpr std::size_t kFeatures = kFirst + kStores * kStoreFeatures;

// How often a source's best guess came true of late; a running mean.
struct HitRate {
  float value = 0.3F;
  void learn(bool right, float rate = 0.06F) { value += rate * (static_cast<float>(right) - value); }
};

// One context in a tree, as far as it does not follow from evidence.
struct Place {
  float depth = 0;
  float score = 1;        // of the node that the context ends in
  float probability = 1;  // of that node, given its parent
  float momentum = 1;
};

// What the sources say of one context.
struct SourceEvidence {
  PromptMatches lookup;
  std::array<TopTokens, kRecycledOrders> rows{};
  std::vector<Evidence> stores;  // one for each datastore
  std::vector<bool> present;     // which of them were asked

  // Best guesses of each kind of source, for their hit_rate; -1: none.
  std::int64_t lookup_guess() const {
    const LookupCandidate* best = nullptr;
    for (const LookupCandidate& candidate : lookup.candidates)
      if (!best || candidate.length > best->length || (candidate.length == best->length && candidate.age < best->age))
        best = &candidate;
    return best ? static_cast<std::int64_t>(best->token) : -1;
  }
  std::int64_t recycled_guess() const {
    for (std::size_t i = kRecycledOrders; i-- > 0;)
      if (rows[i].size > 0) return rows[i].tokens[0];
    return -1;
  }
  std::int64_t store_guess(std::size_t store) const {
    const BackoffLevel* level = stores[store].longest();
    return level && level->next.size > 0 ? static_cast<std::int64_t>(level->next.top[0].token) : -1;
  }
};

struct HitRates {
  HitRate lookup, recycled;
  std::vector<HitRate> stores;
};

// The tokens that any source proposes for one place, and what a fixed rule thinks of each: found by token in constant
// time, kept in columns.
class CandidatePool {
 public:
  static constexpr std::size_t kMost = 192;    // more are ignored
  static constexpr std::size_t kNone = kMost;  // no row

  std::size_t size = 0;
  bool overflowed = false;  // whether a token found no row
  std::array<Token, kMost> tokens;
  std::array<std::uint32_t, kMost> origins;  // bit 0: prompt lookup, bit 1: recycled logits, bit 2 + i: datastore i
  std::array<float, kMost> prior;            // probability, by the rule
  std::array<float, kMost> lookup;           // by the rule, from prompt lookup alone
  std::array<std::array<float, kMost>, kMaxStores> stores;  // from each datastore alone

  void clear(std::size_t store_count) {
    size = 0;
    overflowed = false;
    store_count_ = store_count;
    ++round_;
  }

  // The row of `token`; kNone if there were too many.
  std::size_t find(Token token) const {
    std::size_t place = (token * 0x9E3779B1U) >> 23;
    while (slots_[place].round == round_ && tokens[slots_[place].row] != token) place = (place + 1) % slots_.size();
    return slots_[place].round == round_ ? slots_[place].row : kNone;
  }

  // The row of `token`, a new one if need be; kNone if there are too many.
  std::size_t row(Token token, std::uint32_t origin) {
    std::size_t place = (token * 0x9E3779B1U) >> 23;
    while (slots_[place].round == round_ && tokens[slots_[place].row] != token) place = (place + 1) % slots_.size();
    if (slots_[place].round != round_) {
      if (size == kMost) {
        overflowed = true;
        return kNone;
      }
      slots_[place] = {round_, static_cast<std::uint32_t>(size)};
      tokens[size] = token;
      origins[size] = 0;
      prior[size] = lookup[size] = 0;
      for (std::size_t store = 0; store < store_count_; ++store) stores[store][size] = 0;
      ++size;
    }
    const std::size_t found = slots_[place].row;
    origins[found] |= std::uint32_t{1} << origin;
    return found;
  }

 private:
  struct Slot {
    std::uint32_t round = 0, row = 0;
  };
  std::array<Slot, 512> slots_{};
  std::uint32_t round_ = 0;
  std::size_t store_count_ = 0;
};

class CandidateTable {
 public:
  std::size_t size() const { return size_; }
  Token token(std::size_t row) const { return pool_.tokens[order_[row]]; }
  std::uint32_t origins(std::size_t row) const { return pool_.origins[order_[row]]; }
  float prior(std::size_t row) const { return pool_.prior[order_[row]]; }
  const float* columns() const { return columns_.data(); }
  float feature(std::size_t row, std::size_t column) const { return columns_[column * kCandidates + row]; }

  void gather(const SourceEvidence& sources, const HitRates& hit_rates, const Place& place, const PromptLookup& lookup,
              std::size_t limit) {
    pool_.clear(sources.stores.size());
    weigh(sources, hit_rates);
    if (pool_.overflowed) {
      pool_.clear(sources.stores.size());
      reserve(sources);
      weigh(sources, hit_rates);
    }
    rank(limit);
    fill(sources, hit_rates, place, lookup);
  }

 private:
  // Give rows to the tokens that matter most, for when there are too many: those of each datastore's longest match, so
  // that every one is heard, the model's own, then prompt lookup's, which come longest match first; then of the other
  // matches, the longer first.
  void reserve(const SourceEvidence& sources) {
    const auto of_store = [&](std::size_t store, const BackoffLevel* level) {
      for (const Continuation& one : level->next) pool_.row(one.token, static_cast<std::uint32_t>(2 + store));
    };
    for (std::size_t store = 0; store < sources.stores.size(); ++store)
      if (const BackoffLevel* longest = sources.stores[store].longest()) of_store(store, longest);
    for (const TopTokens& top : sources.rows)
      for (std::size_t rank = 0; rank < top.size; ++rank) pool_.row(top.tokens[rank], 1);
    for (const LookupCandidate& candidate : sources.lookup.candidates) pool_.row(candidate.token, 0);
    for (std::size_t i = 0; i < kLevels; ++i)
      for (std::size_t store = 0; store < sources.stores.size(); ++store)
        if (const BackoffLevel& level = sources.stores[store].levels[i]; level.length > 0) of_store(store, &level);
  }

  // The fixed rule: each source blends its suffix lengths, short ones first, each longer one counting for as many
  // observations as it has; sources are mixed by how often they were right of late and how much they matched.
  void weigh(const SourceEvidence& sources, const HitRates& hit_rates) {
    const PromptMatches& lookup = sources.lookup;
    const float lookup_weight = lookup.length == 0 ? 0 : weight(hit_rates.lookup, static_cast<float>(lookup.length));
    float total = lookup_weight + 1e-6F;
    for (const LookupCandidate& candidate : lookup.candidates) {
      float blend = 0;
      for (const auto& [slot, doubt] : {std::pair{0U, 8.0F}, std::pair{1U, 3.0F}, std::pair{2U, 1.0F}}) {
        const auto count = static_cast<float>(lookup.counts[slot]);
        blend = (count * candidate.shares[slot] + doubt * blend) / (count + doubt);
      }
      if (candidate.length == lookup.length && candidate.length > 4) blend = 0.5F * blend + 0.5F;
      const std::size_t row = pool_.row(candidate.token, 0);
      if (row == CandidatePool::kNone) continue;
      pool_.lookup[row] = blend;
      pool_.prior[row] += lookup_weight * blend;
    }
    bool longest_order = true;
    for (std::size_t order = kRecycledOrders; order > 0; --order) {
      if (sources.rows[order - 1].size == 0) continue;
      static constexpr std::array<float, kRecycledOrders> kTop{0.4F, 0.6F, 0.75F};
      const TopTokens& top = sources.rows[order - 1];
      const float faith = longest_order ? weight(hit_rates.recycled, 2 * static_cast<float>(order)) : 0;
      total += faith;
      for (std::size_t rank = 0; rank < top.size; ++rank)
        if (const std::size_t row = pool_.row(top.tokens[rank], 1); row != CandidatePool::kNone)
          pool_.prior[row] += faith * kTop[order - 1] / static_cast<float>((rank + 1) * (rank + 1));
      longest_order = false;
    }
    for (std::size_t store = 0; store < sources.stores.size(); ++store) {
      const auto& levels = sources.stores[store].levels;
      auto& column = pool_.stores[store];
      for (std::size_t i = kLevels; i-- > 0;) {
        if (levels[i].length == 0) continue;
        const float count = static_cast<float>(std::min<std::uint64_t>(levels[i].count, 10'000)), doubt = 3;
        const float fade = doubt / (count + doubt), gain = count / (count + doubt);
        for (std::size_t row = 0; row < pool_.size; ++row) column[row] *= fade;
        for (const Continuation& one : levels[i].next) {
          const std::size_t row = pool_.row(one.token, static_cast<std::uint32_t>(2 + store));
          if (row != CandidatePool::kNone) column[row] += gain * one.share;
        }
      }
      const BackoffLevel* longest = sources.stores[store].longest();
      const float faith = longest ? weight(hit_rates.stores[store], static_cast<float>(longest->length)) : 0;
      total += faith;
      for (std::size_t row = 0; row < pool_.size; ++row) pool_.prior[row] += faith * column[row];
    }
    for (std::size_t row = 0; row < pool_.size; ++row) pool_.prior[row] /= total;
  }

  static float weight(const HitRate& hit_rate, float length) {
    return (hit_rate.value * hit_rate.value + 0.01F) * length / (length + 2);
  }

  // Order by prior, keep the best.
  void rank(std::size_t limit) {
    size_ = std::min(pool_.size, limit);
    for (std::size_t row = 0; row < pool_.size; ++row) order_[row] = static_cast<std::uint8_t>(row);
    const auto better = [this](std::uint8_t a, std::uint8_t b) {
      return pool_.prior[a] != pool_.prior[b] ? pool_.prior[a] > pool_.prior[b] : pool_.tokens[a] < pool_.tokens[b];
    };
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(size_),
                      order_.begin() + static_cast<std::ptrdiff_t>(pool_.size), better);
    for (std::size_t row = 0; row < pool_.size; ++row) places_[order_[row]] = static_cast<std::uint8_t>(row);
  }

  float& at(std::size_t column, std::size_t row) { return columns_[column * kCandidates + row]; }

  void fill(const SourceEvidence& sources, const HitRates& hit_rates, const Place& place, const PromptLookup& lookup) {
    float above = 0;
    const auto all = [&](std::size_t column, float value) {
      for (std::size_t row = 0; row < kCandidates; ++row) at(column, row) = value;
    };
    all(kDepth, place.depth);
    all(kParentScore, place.score);
    all(kParentProbability, place.probability);
    all(kMomentum, place.momentum);
    all(kLookupLongest, static_cast<float>(sources.lookup.length));
    all(kLookupHitRate, hit_rates.lookup.value);
    all(kRecycledHitRate, hit_rates.recycled.value);
    for (std::size_t i = 0; i < 3; ++i) all(kLookupCount1 + i, static_cast<float>(sources.lookup.counts[i]));
    for (std::size_t row = 0; row < size_; ++row) {
      const std::size_t own = order_[row];
      at(kPrior, row) = pool_.prior[own];
      at(kPriorRank, row) = static_cast<float>(row);
      at(kPriorRival, row) = row > 0 ? prior(0) : size_ > 1 ? prior(1) : 0.0F;
      at(kPriorAbove, row) = above;
      above += pool_.prior[own];
      const auto [count, age] = lookup.occurrences(token(row));
      at(kOccurrences, row) = static_cast<float>(count);
      at(kLastSeen, row) = count == 0 ? 1e6F : static_cast<float>(age);
      at(kLookupBlend, row) = pool_.lookup[own];
      at(kAgreement, row) = static_cast<float>(std::popcount(pool_.origins[own]));
      const LookupCandidate* seen = nullptr;
      for (const LookupCandidate& one : sources.lookup.candidates)
        if (one.token == token(row)) seen = &one;
      at(kLookupLength, row) = seen ? static_cast<float>(seen->length) : 0;
      at(kLookupAge, row) = seen ? static_cast<float>(seen->age) : 1e6F;
      at(kLookupWritten, row) = seen ? static_cast<float>(seen->written) : -1;
      for (std::size_t i = 0; i < 3; ++i) at(kLookupShare1 + i, row) = seen ? seen->shares[i] : 0;
      for (std::size_t i = 0; i < kRecycledOrders; ++i)
        at(kRecycledRank1 + i, row) = sources.rows[i].size > 0 ? static_cast<float>(sources.rows[i].rank(token(row)))
                                                               : static_cast<float>(kTopK + 1);
    }
    // The two datastores that deserve most hit_rate of those that were asked, the better first.
    std::array<std::size_t, kStores> best{};
    std::size_t known = 0;
    for (std::size_t store = 0; store < sources.stores.size(); ++store) {
      if (!sources.present[store]) continue;
      std::size_t place_of = known < kStores ? known++ : kStores;
      for (; place_of > 0 && hit_rates.stores[best[place_of - 1]].value < hit_rates.stores[store].value; --place_of)
        if (place_of < kStores) best[place_of] = best[place_of - 1];
      if (place_of < kStores) best[place_of] = store;
    }
    for (std::size_t i = 0; i < kStores; ++i) {
      const std::size_t first = kFirst + i * kStoreFeatures;
      if (i >= known) {
        for (std::size_t column = 0; column < kStoreFeatures; ++column) all(first + column, -1);
        continue;
      }
      const Evidence& evidence = sources.stores[best[i]];
      const BackoffLevel* longest = evidence.longest();
      const BackoffLevel* between = evidence.levels[1].length > 0 ? &evidence.levels[1] : evidence.longest(kShort);
      const std::array<const BackoffLevel*, kStoreSlots> slots{
          longest, between, evidence.longest(4), evidence.longest(3), evidence.longest(2), evidence.longest(1)};
      all(first + kLength, longest ? static_cast<float>(longest->length) : 0);
      all(first + kBetween, between ? static_cast<float>(between->length) : 0);
      all(first + kHitRate, hit_rates.stores[best[i]].value);
      for (std::size_t row = 0; row < size_; ++row) at(first + kBlend, row) = pool_.stores[best[i]][order_[row]];
      for (std::size_t slot = 0; slot < kStoreSlots; ++slot) {
        const BackoffLevel* level = slots[slot];
        all(first + kCounts + slot, level ? static_cast<float>(level->count) : 0);
        all(first + kShares + slot, 0);
        if (!level) continue;
        for (const Continuation& one : level->next) {
          const std::size_t own = pool_.find(one.token);
          if (own != CandidatePool::kNone && places_[own] < size_) at(first + kShares + slot, places_[own]) = one.share;
        }
      }
    }
  }

  CandidatePool pool_;
  std::size_t size_ = 0;
  std::array<std::uint8_t, CandidatePool::kMost> order_;     // rows of the pool, best first
  std::array<std::uint8_t, CandidatePool::kMost> places_{};  // of each row of the pool in that order
  std::array<float, kFeatures * kCandidates> columns_{};
};

static_assert(kCandidates % kLanes == 0);

}  // namespace rest_store
