// The candidates for one position of a draft tree and their features: a table with a row for each
// candidate and a column for each feature that the gradient-boosted trees read.
//
// The prior chooses the candidates that become rows. It is a score by a fixed rule, which needs no
// fitting. All sources together may propose hundreds of tokens, of which the trees score at most
// kCandidates.
#pragma once

#include <bit>

#include "session/candidate_pool.hpp"
#include "session/integer_trees.hpp"

namespace rest_store {

constexpr std::size_t kCandidates = 32;   // rows of the table
constexpr std::size_t kRankedStores = 2;  // frozen stores with columns of their own
// Suffix lengths of a store that are features: the longest, the middle one, 4, 3, 2, 1.
constexpr std::size_t kSuffixFeatures = 6;

static_assert(kCandidates == kColumn);

// The columns of the table. A calibration file refers to them by number, so none may move.
enum Feature : std::size_t {
  kDepth,
  kParentScore,
  kParentProbability,
  kMeanAccepted,
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
  kLookupInterpolated,
  kRecycledRank1,
  kRecycledRank2,
  kRecycledRank3,
  kRecycledHitRate,
  // Here begin the columns of the frozen store with the best hit rate, then of the second, then of
  // the best live one. Other stores only add to the prior.
  kFirstStore,
};
// The columns of one store, from the first of them on.
enum StoreFeature : std::size_t {
  kLength,
  kHitRate,
  kMiddleLength,
  kInterpolated,
  kShares,
  kCounts = kShares + kSuffixFeatures,
  kStoreFeatures = kCounts + kSuffixFeatures
};
constexpr std::size_t kLiveStore = kFirstStore + kRankedStores * kStoreFeatures;
// Of recycled logits, one column each for the last token, the last two, ...
constexpr std::size_t kRecycledShare1 = kLiveStore + kStoreFeatures;
constexpr std::size_t kRecycledTimes1 = kRecycledShare1 + kRecycledOrders;
constexpr std::size_t kRecycledRank4 = kRecycledTimes1 + kRecycledOrders;
constexpr std::size_t kFeatures = kRecycledRank4 + 1;
constexpr std::array<std::size_t, kRecycledOrders> kRecycledRanks{kRecycledRank1, kRecycledRank2,
                                                                  kRecycledRank3, kRecycledRank4};

// The share of recent steps in which a source's best candidate came next; a running mean.
struct HitRate {
  static constexpr float kLatestShare = 0.06F;

  float value = 0.3F;
  void learn(bool right) { value += kLatestShare * (static_cast<float>(right) - value); }
};

struct HitRates {
  HitRate lookup, recycled;
  std::vector<HitRate> stores;
};

// Features of the node whose children the candidates are.
struct NodeFeatures {
  float depth = 0;
  float score = 1;
  float probability = 1;    // that it is accepted if its parent is
  float mean_accepted = 1;  // accepted length of recent steps
};

// The evidence of each source about the next token of one context.
struct SourceEvidence {
  PromptMatches lookup;
  std::array<LikelyTokens, kRecycledOrders> recycled{};
  std::vector<Evidence> stores;
  std::vector<bool> live;  // which of the stores use the columns of live ones

  // The token of the best candidate of each kind of source, for its hit rate; -1: none.
  std::int64_t best_of_lookup() const {
    const LookupCandidate* best = nullptr;
    for (const LookupCandidate& candidate : lookup.candidates)
      if (!best || candidate.length > best->length ||
          (candidate.length == best->length && candidate.age < best->age))
        best = &candidate;
    return best ? static_cast<std::int64_t>(best->token) : -1;
  }
  std::int64_t best_of_recycled() const {
    for (std::size_t i = kRecycledOrders; i-- > 0;)
      if (recycled[i].size() > 0) return recycled[i].tokens()[0];
    return -1;
  }
  std::int64_t best_of_store(std::size_t store) const {
    const BackoffLevel* level = stores[store].longest();
    return level && level->next.size > 0 ? static_cast<std::int64_t>(level->next.top[0].token) : -1;
  }
};

// Keeps its memory from one position to the next. Not thread-safe.
class CandidateTable {
 public:
  // Rows, at most kCandidates; row 0 has the greatest prior.
  std::size_t size() const { return size_; }
  Token token(std::size_t row) const { return pool_.tokens[order_[row]]; }
  std::uint32_t origins(std::size_t row) const { return pool_.origins[order_[row]]; }
  float prior(std::size_t row) const { return pool_.prior[order_[row]]; }
  // The features, in the layout that IntegerTrees reads: column after column, kCandidates rows
  // each. Only the first kLanes rows are set if there are no more candidates; those from size() on
  // have no meaning.
  const float* columns() const { return columns_.data(); }
  float feature(std::size_t row, std::size_t column) const {
    return columns_[column * kCandidates + row];
  }

  // Fill the table with the candidates of greatest prior, the greatest first.
  //
  // `sources`: the evidence about this position. `hit_rates`: of the same stores. `node`: the
  // features of the node before this position. `lookup`: has the text. `limit`: most rows, at most
  // kCandidates.
  void fill(const SourceEvidence& sources, const HitRates& hit_rates, const NodeFeatures& node,
            const PromptLookup& lookup, std::size_t limit) {
    pool_.clear(sources.stores.size());
    set_priors(sources, hit_rates);
    choose_rows(limit);
    set_node_features(sources, hit_rates, node);
    set_candidate_features(sources, lookup);
    set_recycled_features(sources);
    const auto frozen = best_stores<kRankedStores>(sources, hit_rates, false);
    for (std::size_t i = 0; i < kRankedStores; ++i)
      set_store_features(sources, hit_rates, frozen[i], kFirstStore + i * kStoreFeatures);
    set_store_features(sources, hit_rates, best_stores<1>(sources, hit_rates, true)[0], kLiveStore);
  }

 private:
  // The fixed rule, for each candidate of any source. Each source gives it a share, which is
  // interpolated over the lengths of suffixes: from the shortest on, the share after a suffix
  // counts for a few occurrences of the next longer one (as in interpolated backoff of n-gram
  // models). The prior is the mean of these shares, weighted by the hit rates and match lengths of
  // the sources.
  void set_priors(const SourceEvidence& sources, const HitRates& hit_rates) {
    float total = 1e-6F;  // of the weights of all sources
    total += add_lookup(sources.lookup, hit_rates.lookup);
    total += add_recycled(sources.recycled, hit_rates.recycled);
    for (std::size_t store = 0; store < sources.stores.size(); ++store)
      total += add_store(store, sources.stores[store], hit_rates.stores[store]);
    for (std::size_t row = 0; row < pool_.size; ++row) pool_.prior[row] /= total;
  }

  // Add the candidates of prompt lookup. Returns the weight of the source.
  float add_lookup(const PromptMatches& lookup, const HitRate& hit_rate) {
    const float weight =
        lookup.length == 0 ? 0 : weight_of(hit_rate, static_cast<float>(lookup.length));
    for (const LookupCandidate& candidate : lookup.candidates) {
      float interpolated = 0;
      for (std::size_t order = 0; order < kLookupPseudoCounts.size(); ++order) {
        const float pseudo_count = kLookupPseudoCounts[order];
        const auto count = static_cast<float>(lookup.counts[order]);
        interpolated = (count * candidate.shares[order] + pseudo_count * interpolated) /
                       (count + pseudo_count);
      }
      if (candidate.length == lookup.length && candidate.length > 4)
        interpolated = 0.5F * interpolated + 0.5F;
      const std::size_t row = pool_.add(candidate.token, 0);
      pool_.matched[row] = static_cast<std::uint8_t>(&candidate - lookup.candidates.data());
      pool_.lookup[row] = interpolated;
      pool_.prior[row] += weight * interpolated;
    }
    return weight;
  }

  // Add the candidates of recycled logits. Returns the weight of the source. Tokens after the
  // longest context that is known share that weight. Those after shorter ones are candidates
  // without weight.
  float add_recycled(const std::array<LikelyTokens, kRecycledOrders>& recycled,
                     const HitRate& hit_rate) {
    float total = 0;
    bool is_longest = true;
    for (std::size_t order = kRecycledOrders; order > 0; --order) {
      const LikelyTokens& likely = recycled[order - 1];
      if (likely.size() == 0) continue;
      const float weight = is_longest ? weight_of(hit_rate, 2 * static_cast<float>(order)) : 0;
      const float first = weight * kFirstShares[order - 1];
      is_longest = false;
      total += weight;
      for (std::size_t rank = 0; rank < likely.size(); ++rank) {
        const std::uint16_t row = pool_.add(likely.tokens()[rank], 1);
        recycled_rows_[order - 1][rank] = row;
        pool_.prior[row] += first / static_cast<float>((rank + 1) * (rank + 1));
      }
    }
    return total;
  }

  // Add the candidates of a datastore. Returns the weight of the source.
  float add_store(std::size_t store, const Evidence& evidence, const HitRate& hit_rate) {
    auto& interpolated = pool_.stores[store];
    for (std::size_t i = kLevels; i-- > 0;) {
      const BackoffLevel& level = evidence.levels[i];
      if (level.length == 0) continue;
      const auto count = static_cast<float>(std::min<std::uint64_t>(level.count, kMaxStoreCount));
      const float backoff = kStorePseudoCount / (count + kStorePseudoCount);
      const float gain = count / (count + kStorePseudoCount);
      for (std::size_t row = 0; row < pool_.size; ++row) interpolated[row] *= backoff;
      std::uint16_t* rows = store_rows_[store][i].data();
      for (const Continuation& next : level.next) {
        const std::uint16_t row = pool_.add(next.token, static_cast<std::uint32_t>(2 + store));
        *rows++ = row;
        interpolated[row] += gain * next.share;
      }
    }
    const BackoffLevel* longest = evidence.longest();
    const float weight = longest ? weight_of(hit_rate, static_cast<float>(longest->length)) : 0;
    for (std::size_t row = 0; row < pool_.size; ++row)
      pool_.prior[row] += weight * interpolated[row];
    return weight;
  }

  // The weight of a source whose longest match has `length` tokens.
  static float weight_of(const HitRate& hit_rate, float length) {
    return (hit_rate.value * hit_rate.value + 0.01F) * length / (length + 2);
  }

  // Choose the `limit` candidates of greatest prior, of equals the lesser token first, as rows.
  // These are few of many, so that most are compared with the last of them alone.
  void choose_rows(std::size_t limit) {
    size_ = 0;
    std::array<std::uint64_t, kCandidates> best;  // keys, ascending
    for (std::size_t row = 0; row < pool_.size; ++row) {
      // Priors are not negative, so their bits are in their order.
      const std::uint64_t key =
          std::uint64_t{~std::bit_cast<std::uint32_t>(pool_.prior[row])} << 32 | pool_.tokens[row];
      if (size_ == limit && key > best[limit - 1]) continue;
      std::size_t rank = size_ < limit ? size_++ : limit - 1;
      for (; rank > 0 && best[rank - 1] > key; --rank) {
        best[rank] = best[rank - 1];
        order_[rank] = order_[rank - 1];
      }
      best[rank] = key;
      order_[rank] = static_cast<std::uint16_t>(row);
    }
    lanes_ = size_ <= kLanes ? kLanes : kCandidates;
    std::fill_n(row_of_.begin(), pool_.size, kNoRow);
    for (std::size_t row = 0; row < size_; ++row)
      row_of_[order_[row]] = static_cast<std::uint8_t>(row);
  }

  float& at(std::size_t column, std::size_t row) { return columns_[column * kCandidates + row]; }
  void set_column(std::size_t column, float value) {
    float* to = &columns_[column * kCandidates];
    // In two parts of known size: each takes an instruction or a few.
    std::fill_n(to, kLanes, value);
    if (lanes_ > kLanes) std::fill_n(to + kLanes, kLanes, value);
  }

  // The columns that are the same for all candidates of a position.
  void set_node_features(const SourceEvidence& sources, const HitRates& hit_rates,
                         const NodeFeatures& node) {
    set_column(kDepth, node.depth);
    set_column(kParentScore, node.score);
    set_column(kParentProbability, node.probability);
    set_column(kMeanAccepted, node.mean_accepted);
    set_column(kLookupLongest, static_cast<float>(sources.lookup.length));
    set_column(kLookupHitRate, hit_rates.lookup.value);
    set_column(kRecycledHitRate, hit_rates.recycled.value);
    for (std::size_t i = 0; i < sources.lookup.counts.size(); ++i)
      set_column(kLookupCount1 + i, static_cast<float>(sources.lookup.counts[i]));
  }

  // The columns of each candidate, from its priors, from the text, and from prompt lookup.
  void set_candidate_features(const SourceEvidence& sources, const PromptLookup& lookup) {
    std::array<Token, kCandidates> tokens;
    for (std::size_t row = 0; row < size_; ++row) tokens[row] = token(row);
    std::array<std::pair<std::uint32_t, std::uint32_t>, kCandidates> occurrences;
    lookup.occurrences(std::span(tokens).first(size_), occurrences.data());
    float above = 0;
    for (std::size_t row = 0; row < size_; ++row) {
      const std::size_t pooled = order_[row];
      at(kPrior, row) = pool_.prior[pooled];
      at(kPriorRank, row) = static_cast<float>(row);
      at(kPriorRival, row) = row > 0 ? prior(0) : size_ > 1 ? prior(1) : 0.0F;
      at(kPriorAbove, row) = above;
      above += pool_.prior[pooled];
      const auto [count, age] = occurrences[row];
      at(kOccurrences, row) = static_cast<float>(count);
      at(kLastSeen, row) = count == 0 ? kNeverSeen : static_cast<float>(age);
      at(kLookupInterpolated, row) = pool_.lookup[pooled];
      at(kAgreement, row) = static_cast<float>(std::popcount(pool_.origins[pooled]));
      const std::uint8_t matched = pool_.matched[pooled];
      const bool is_matched = matched != CandidatePool::kUnmatched;
      const LookupCandidate& candidate =
          is_matched ? sources.lookup.candidates[matched] : kNoCandidate;
      at(kLookupLength, row) = static_cast<float>(candidate.length);
      at(kLookupAge, row) = is_matched ? static_cast<float>(candidate.age) : kNeverSeen;
      at(kLookupWritten, row) = is_matched ? static_cast<float>(candidate.written) : -1;
      for (std::size_t i = 0; i < candidate.shares.size(); ++i)
        at(kLookupShare1 + i, row) = candidate.shares[i];
    }
  }

  // The columns of recycled logits: after the last token, the last two, and so on.
  void set_recycled_features(const SourceEvidence& sources) {
    for (std::size_t i = 0; i < kRecycledOrders; ++i) {
      const LikelyTokens& likely = sources.recycled[i];
      set_column(kRecycledRanks[i], static_cast<float>(likely.size() > 0 ? kTopK : kTopK + 1));
      set_column(kRecycledShare1 + i, 0);
      set_column(kRecycledTimes1 + i, static_cast<float>(likely.times()));
      for (std::size_t rank = likely.size(); rank-- > 0;) {
        const std::size_t row = row_of_[recycled_rows_[i][rank]];
        if (row == kNoRow) continue;
        at(kRecycledRanks[i], row) = static_cast<float>(rank);
        at(kRecycledShare1 + i, row) = likely.share(rank);
      }
    }
  }

  static constexpr std::size_t kNoStore = kMaxStores;

  // The `count` stores with the best hit rates among the live or the frozen ones, the better first,
  // of equals the first. kNoStore fills the places of stores that are missing.
  template <std::size_t count>
  static std::array<std::size_t, count> best_stores(const SourceEvidence& sources,
                                                    const HitRates& hit_rates, bool live) {
    std::array<std::size_t, count> best;
    best.fill(kNoStore);
    for (std::size_t store = 0; store < sources.stores.size(); ++store) {
      if (sources.live[store] != live) continue;
      std::size_t unplaced = store;
      for (std::size_t& place : best) {
        const bool is_better =
            place == kNoStore || hit_rates.stores[place].value < hit_rates.stores[unplaced].value;
        if (!is_better) continue;
        std::swap(place, unplaced);
        if (unplaced == kNoStore) break;
      }
    }
    return best;
  }

  // The columns of `store`, from `first` on; -1 in all of them if it is kNoStore.
  void set_store_features(const SourceEvidence& sources, const HitRates& hit_rates,
                          std::size_t store, std::size_t first) {
    if (store == kNoStore) {
      for (std::size_t column = 0; column < kStoreFeatures; ++column)
        set_column(first + column, -1);
      return;
    }
    const Evidence& evidence = sources.stores[store];
    const BackoffLevel* longest = evidence.longest();
    const BackoffLevel* middle =
        evidence.levels[1].length > 0 ? &evidence.levels[1] : evidence.longest(kShort);
    const std::array<const BackoffLevel*, kSuffixFeatures> levels{longest,
                                                                  middle,
                                                                  evidence.longest(4),
                                                                  evidence.longest(3),
                                                                  evidence.longest(2),
                                                                  evidence.longest(1)};
    set_column(first + kLength, longest ? static_cast<float>(longest->length) : 0);
    set_column(first + kMiddleLength, middle ? static_cast<float>(middle->length) : 0);
    set_column(first + kHitRate, hit_rates.stores[store].value);
    for (std::size_t row = 0; row < size_; ++row)
      at(first + kInterpolated, row) = pool_.stores[store][order_[row]];
    for (std::size_t i = 0; i < kSuffixFeatures; ++i) {
      const BackoffLevel* level = levels[i];
      set_column(first + kCounts + i, level ? static_cast<float>(level->count) : 0);
      set_column(first + kShares + i, 0);
      if (!level) continue;
      const std::uint16_t* pooled =
          store_rows_[store][static_cast<std::size_t>(level - evidence.levels.data())].data();
      const std::size_t column = (first + kShares + i) * kCandidates;
      for (const Continuation& next : level->next) {
        const std::size_t row = row_of_[*pooled++];
        // Without a branch: the shares of tokens without a row go to the last element.
        columns_[select(row == kNoRow, kFeatures * kCandidates, column + row)] = next.share;
      }
    }
  }

  // Occurrences of the longer suffix for which the share after the shorter one counts, by index of
  // the shares.
  static constexpr std::array<float, 3> kLookupPseudoCounts{8.0F, 3.0F, 1.0F};
  static constexpr float kStorePseudoCount = 3.0F;
  static constexpr std::uint64_t kMaxStoreCount = 10'000;  // occurrences that are believed
  // The probability of the likeliest recycled token after one, two, three and four tokens.
  static constexpr std::array<float, kRecycledOrders> kFirstShares{0.4F, 0.6F, 0.75F, 0.8F};

  static constexpr float kNeverSeen = 1e6F;  // tokens since a token was seen that never was
  static constexpr std::uint8_t kNoRow = 255;
  static constexpr LookupCandidate kNoCandidate{};

  CandidatePool pool_;
  // The rows of the pool that recycled logits have, and that the continuations of each level of
  // each store have.
  std::array<std::array<std::uint16_t, kTopK>, kRecycledOrders> recycled_rows_{};
  std::array<std::array<std::array<std::uint16_t, kContinuations>, kLevels>, kMaxStores>
      store_rows_{};
  std::size_t size_ = 0;
  std::size_t lanes_ = kCandidates;                 // rows that are filled
  std::array<std::uint16_t, kCandidates> order_{};  // rows of the pool, best first
  // The place of each row of the pool in that order, or kNoRow.
  std::array<std::uint8_t, CandidatePool::kMax> row_of_{};
  // The last element takes values without a row.
  alignas(64) std::array<float, kFeatures * kCandidates + 1> columns_{};
};

}  // namespace rest_store
