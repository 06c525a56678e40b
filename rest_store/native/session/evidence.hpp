// N-gram evidence of a datastore: the continuations of several suffixes of a context, from the
// longest one that occurs down to one token, as in backoff language models.
//
// HINTS FROM THE PARENT. A node of a draft tree needs the occurrences of each suffix of its
// context.
//
// The naive way: search all shards for each suffix. Each of the six searches halves the ranks of a
// shard some 25 times, and most of these steps wait for memory.
//
// The work that it repeats: the context of a node is its parent's and one more token. If the
// parent's suffix "a b" occurs at the ranks 1,000 to 1,200, then "a b c" can occur nowhere else,
// and since suffixes are sorted, its ranks are an interval among these.
//
// The rule: the suffix of n + 1 tokens is searched within the parent's interval for n tokens, by
// its last token alone. If all next tokens of the parent's suffix were read, their numbers tell the
// interval without a search. No suffix is searched if the parent's does not occur; so no suffix of
// a node is longer than its parent's longest and one token. Whole shards are searched for the
// suffixes of the root (search/match.hpp) and for single tokens. Suffixes of at most kShort tokens
// come up again and again, so their levels are cached (suffix_cache.hpp).
#pragma once

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "session/suffix_cache.hpp"

namespace rest_store {

constexpr std::size_t kLongLevels = 2;  // the longest suffix, and one between it and the short ones
constexpr std::size_t kLevels = kLongLevels + kShort;

// The evidence of one context. levels[0] is the longest suffix that occurs, levels[1] one between
// it and the short ones, if any; then come the suffixes of 4, 3, 2 and 1 tokens. Suffixes that do
// not occur have length 0.
struct Evidence {
  std::array<BackoffLevel, kLevels> levels;

  void clear() {
    for (BackoffLevel& level : levels) level.clear();
  }

  // The level of the longest suffix of at most `limit` tokens that occurs, or null.
  const BackoffLevel* longest(std::uint32_t limit = ~std::uint32_t{0}) const {
    for (const BackoffLevel& level : levels)
      if (level.length > 0 && level.length <= limit) return &level;
    return nullptr;
  }
};

// Reads evidence from the shards of one datastore. Thread-safe: shards are read-only, and the cache
// synchronizes itself.
class EvidenceReader {
  // The most occurrences of one suffix whose next tokens are read.
  static constexpr std::size_t kLongSamples = 24, kShortSamples = 96;

  // Levels of a parent that are long with one more token: its long ones, and that of kShort tokens.
  static constexpr std::size_t kExtendedLevels = kLongLevels + 1;

  // A request whose searches have begun.
  struct PendingRequest {
    std::span<const Token> tail;
    Suffix suffix;
    std::array<std::size_t, kShort + 1> slots{};  // in the cache, by length of a short suffix
    std::array<bool, kShort + 1> missing{};       // by length: whether it is not in the cache

    PendingRequest(std::span<const Token> tokens, std::uint32_t width)
        : tail(tokens), suffix(tokens.last(std::min(tokens.size(), kMaxSuffix)), width) {}

    std::size_t short_suffixes() const { return std::min<std::size_t>(kShort, tail.size()); }
  };

  // A level whose intervals are being searched for, and the first of their searches or boundaries.
  struct PendingLevel {
    BackoffLevel* level;
    const EvidenceReader* reader;
    std::size_t first;
  };

 public:
  // Buffers of a call of read(), reused by the next. One call uses them at a time.
  class Scratch {
    friend class EvidenceReader;

    Matcher matcher;
    ContinuationReader reader;
    std::vector<Search> searches;
    std::vector<std::uint8_t> decided;
    std::vector<Boundary> boundaries;
    std::vector<PendingLevel> searched, narrowed;  // in whole shards; within known intervals
    std::vector<ContinuationQuery> queries;
    std::vector<PendingRequest> pending;
    // Of each request, the longest first.
    std::vector<std::array<BackoffLevel, kExtendedLevels>> long_levels;
    std::vector<MatchQuery> matches;
    std::vector<Match> longest;  // of each request, if it is of a root

    // Make room for so many requests: searches point into the vectors that they fill.
    void clear(std::size_t requests) {
      clear_searches();
      queries.clear();
      matches.clear();
      pending.clear();
      pending.reserve(requests);
      long_levels.resize(std::max(long_levels.size(), requests));
      longest.resize(std::max(longest.size(), requests));
      for (std::size_t i = 0; i < requests; ++i)
        for (BackoffLevel& level : long_levels[i]) level.clear();
    }

    void clear_searches() {
      searches.clear();
      boundaries.clear();
      searched.clear();
      narrowed.clear();
    }
  };

  // `shards`: of the datastore, at least one; the memory that they point to outlives the reader.
  // `vocabulary`: tokens are below it. `live`: whether the datastore holds text of the target
  // model. `cache`: of the datastore; the entries of other readers are not used. `sharing`: limits
  // the reader, one group for each shard; null: it may learn of everything.
  EvidenceReader(std::vector<ShardView> shards, std::uint32_t vocabulary, bool live,
                 std::shared_ptr<SuffixCache> cache, std::shared_ptr<const Sharing> sharing)
      : shards_(std::move(shards)),
        vocabulary_(vocabulary),
        live_(live),
        cache_(std::move(cache)),
        sharing_(std::move(sharing)),
        number_(cache_->add_reader()) {}
  EvidenceReader(const EvidenceReader&) = delete;
  EvidenceReader& operator=(const EvidenceReader&) = delete;

  std::uint32_t width() const { return shards_[0].width; }  // bytes of a token
  bool live() const { return live_; }

  // A request for the evidence of the context that ends in `tail`, oldest token first.
  struct Request {
    EvidenceReader* reader;
    const Evidence* parent;  // of the context without its last token; null: `tail` is of a root
    std::span<const Token> tail;
    Evidence* out;  // is overwritten
  };

  // Read the evidence of all `requests`, whose reads of memory overlap (search/search.hpp). The
  // requests and all that they point to live until the call returns; `out` of one request may not
  // be `parent` of another. `meanwhile()` is called once, while the continuations are on their way
  // from memory. Thread-safe, with a scratch for each thread.
  template <class Meanwhile>
  static void read(std::span<const Request> requests, Scratch& scratch, Meanwhile&& meanwhile) {
    scratch.clear(requests.size());
    prefetch_cached_levels(requests, scratch);
    begin_searches(requests, scratch);
    finish_searches(scratch);
    search_roots(requests, scratch);
    queue_continuations(requests, scratch);
    scratch.reader.read(scratch.queries, meanwhile);
    for (std::size_t i = 0; i < requests.size(); ++i)
      requests[i].reader->cache(scratch.pending[i], *requests[i].out);
  }

 private:
  // Begin with all requests, and prefetch the cache's entries of their short suffixes.
  static void prefetch_cached_levels(std::span<const Request> requests, Scratch& scratch) {
    for (const Request& request : requests) {
      const EvidenceReader& reader = *request.reader;
      PendingRequest& pending =
          scratch.pending.emplace_back(reader.in_vocabulary(request.tail), reader.width());
      for (std::uint32_t length = 1; length <= pending.short_suffixes(); ++length) {
        pending.slots[length] = reader.cache_->index_of(short_suffix(pending.tail.last(length)));
        reader.cache_->prefetch_index(pending.slots[length]);
      }
    }
    for (std::size_t i = 0; i < requests.size(); ++i)
      for (std::uint32_t length = 1; length <= scratch.pending[i].short_suffixes(); ++length)
        requests[i].reader->cache_->prefetch_slot(scratch.pending[i].slots[length]);
  }

  // Begin to search for the short suffixes that are not in the cache, and for the long ones that
  // extend a parent's.
  static void begin_searches(std::span<const Request> requests, Scratch& scratch) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto& [reader, parent, whole, out] = requests[i];
      PendingRequest& pending = scratch.pending[i];
      if (pending.tail.empty()) continue;
      reader->short_levels(pending, parent, *out, scratch);
      if (parent == nullptr) continue;
      for (std::size_t level = 0; level < kExtendedLevels; ++level) {
        const BackoffLevel& from = parent->levels[level];
        if (from.length == 0 || from.length >= std::min(kMaxSuffix, pending.tail.size())) continue;
        reader->narrow(from, pending.tail.back(), pending.suffix, scratch.long_levels[i][level],
                       scratch);
      }
    }
  }

  // Find the longest matches of the roots among `requests`, and a level between these and the short
  // ones. Only a root whose suffix of kShort tokens occurs can have a longer match.
  static void search_roots(std::span<const Request> requests, Scratch& scratch) {
    const auto may_be_long = [&](std::size_t i) {
      return requests[i].parent == nullptr && !scratch.pending[i].tail.empty() &&
             requests[i].out->levels[kLongLevels].length > 0;
    };
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (EvidenceReader& reader = *requests[i].reader; may_be_long(i))
        scratch.matches.push_back(
            {&reader.shards_, &scratch.pending[i].suffix, &scratch.longest[i], kShort});
    if (scratch.matches.empty()) return;
    scratch.matcher.longest(scratch.matches);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (!may_be_long(i)) continue;
      Match& match = scratch.longest[i];
      if (match.length <= kShort) continue;
      auto& [longest, middle, unused] = scratch.long_levels[i];
      if (const EvidenceReader& reader = *requests[i].reader; reader.sharing_ != nullptr) {
        longest.is_shared =
            shorten(*reader.sharing_, reader.shards_, scratch.pending[i].suffix, kShort, match);
        if (match.length <= kShort) continue;
      }
      longest.length = match.length;
      longest.count = match.count;
      std::swap(longest.intervals, match.intervals);
      if (const std::uint32_t length = middle_length(match.length); length > kShort)
        requests[i].reader->seek(scratch.pending[i].suffix, length, middle, scratch);
    }
    finish_searches(scratch);
  }

  // The length of the suffix between a longest match and the short suffixes; it is read if it is
  // longer than kShort. A long match often occurs once, in one text. A suffix of at most 8 tokens,
  // and at least 2 tokens shorter, tells whether other texts go on differently.
  static std::uint32_t middle_length(std::uint32_t longest) {
    return std::min<std::uint32_t>(longest - 2, 8);
  }

  // Take over the long levels that occur, and request the continuations of all levels that are not
  // from the cache.
  static void queue_continuations(std::span<const Request> requests, Scratch& scratch) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto& [reader, parent, whole, out] = requests[i];
      if (scratch.pending[i].tail.empty()) {
        out->clear();
        continue;
      }
      for (std::uint32_t length = 1; length <= kShort; ++length)
        if (BackoffLevel& level = out->levels[kLevels - length];
            scratch.pending[i].missing[length] && level.length > 0)
          reader->queue(level, scratch);
      for (std::size_t level = 0; level < kLongLevels; ++level) out->levels[level].clear();
      std::size_t filled = 0;
      for (BackoffLevel& level : scratch.long_levels[i])
        if (level.length > 0 && filled < kLongLevels) {
          std::swap(out->levels[filled], level);
          reader->queue(out->levels[filled++], scratch);
        }
    }
  }

  // The last tokens of `tail` from which on all are in this vocabulary.
  std::span<const Token> in_vocabulary(std::span<const Token> tail) const {
    std::size_t size = 0;
    while (size < tail.size() && tail[tail.size() - 1 - size] < vocabulary_) ++size;
    return tail.last(size);
  }

  // Take the levels of the short suffixes from the cache, and begin to search for the others: among
  // the occurrences of the parent's suffix if there is a parent, else in whole shards.
  void short_levels(PendingRequest& pending, const Evidence* parent, Evidence& out,
                    Scratch& scratch) {
    const auto& [tail, suffix, slots, unused] = pending;
    bool occurs = true;
    for (std::uint32_t length = 1; length <= kShort; ++length) {
      BackoffLevel& level = out.levels[kLevels - length];
      if (occurs && length > 1 && parent != nullptr)
        occurs = parent->levels[kLevels - length + 1].length > 0;
      if (!occurs || length > tail.size()) {
        level.clear();
        continue;
      }
      if (cache_->find(slots[length], short_suffix(tail.last(length)), number_, level)) {
        occurs = level.length > 0;
        continue;
      }
      pending.missing[length] = true;
      if (length > 1 && parent != nullptr)
        narrow(parent->levels[kLevels - length + 1], tail.back(), suffix, level, scratch);
      else seek(suffix, length, level, scratch);
    }
  }

  // Begin to search for the last `length` tokens of `suffix`.
  void seek(const Suffix& suffix, std::uint32_t length, BackoffLevel& level,
            Scratch& scratch) const {
    level.length = length;
    scratch.searched.push_back({&level, this, scratch.searches.size()});
    for (const ShardView& shard : shards_)
      scratch.searches.emplace_back(shard, suffix.last(length), length * width(),
                                    scratch.searched.size() - 1);
  }

  // Set `to` to the occurrences of `from` that continue with `token`, the last one of `suffix`, or
  // begin to search for them.
  void narrow(const BackoffLevel& from, Token token, const Suffix& suffix, BackoffLevel& to,
              Scratch& scratch) const {
    to.length = from.length + 1;
    if (!infer_narrowed(from, token, to)) search_narrowed(from, suffix, to, scratch);
  }

  // Infer these occurrences from the continuations of `from`. Returns false, with `to` as it was,
  // if that is not possible: all occurrences of `from` have to be read, and either all of them
  // continue with `token`, or all are in one shard, where they are in the order of their next
  // tokens.
  bool infer_narrowed(const BackoffLevel& from, Token token, BackoffLevel& to) const {
    const bool are_all_read = sharing_ == nullptr && from.next.size < kContinuations &&
                              stride_of(from.count, samples_of(from.length)) == 1;
    if (!are_all_read) return false;
    float less = 0, same = 0;  // shares of lesser next tokens, and of `token`
    for (const Continuation& next : from.next) {
      if (next.token < token) less += next.share;
      if (next.token == token) same = next.share;
    }
    if (same == 0) {
      to.clear();
      return true;
    }
    const auto is_empty = [](const Interval& ranks) { return ranks.width() == 0; };
    const auto first = std::find_if_not(from.intervals.begin(), from.intervals.end(), is_empty);
    if (same != 1 && !std::all_of(first + 1, from.intervals.end(), is_empty)) return false;
    const auto count = static_cast<float>(from.count);
    to.intervals = from.intervals;
    to.count = static_cast<std::uint64_t>(std::lround(same * count));
    if (same == 1) return true;
    Interval& ranks = to.intervals[static_cast<std::size_t>(first - from.intervals.begin())];
    ranks.begin += static_cast<Rank>(std::lround(less * count));
    ranks.end = ranks.begin + to.count;
    return true;
  }

  // Begin to search for these occurrences within the intervals of `from`.
  void search_narrowed(const BackoffLevel& from, const Suffix& suffix, BackoffLevel& to,
                       Scratch& scratch) const {
    scratch.narrowed.push_back({&to, this, scratch.boundaries.size()});
    for (std::size_t i = 0; i < shards_.size(); ++i)
      for (const bool after : {false, true})
        scratch.boundaries.push_back({&shards_[i], suffix.last(1), width(), from.length, after,
                                      from.intervals[i].begin, from.intervals[i].end, 0});
  }

  // Finish all searches, and set the levels that they are for. Levels of suffixes that do not
  // occur, or of which the reader may not learn, are cleared.
  static void finish_searches(Scratch& scratch) {
    if (!scratch.searched.empty())
      locate(scratch.searches, scratch.searched.size(), scratch.decided);
    for (std::size_t group = 0; group < scratch.searched.size(); ++group) {
      PendingLevel pending = scratch.searched[group];
      if (!scratch.decided[group]) {
        pending.level->clear();
        continue;
      }
      const std::size_t first = std::exchange(pending.first, scratch.boundaries.size());
      const std::size_t shards = pending.reader->shards_.size();
      scratch.boundaries.resize(pending.first + 2 * shards);
      for (std::size_t i = 0; i < shards; ++i)
        interval_boundaries(scratch.searches[first + i],
                            &scratch.boundaries[pending.first + 2 * i]);
      scratch.narrowed.push_back(pending);
    }
    find_boundaries(std::span(scratch.boundaries));
    for (const auto& [level, reader, first] : scratch.narrowed) {
      const std::size_t shards = reader->shards_.size();
      level->intervals.resize(shards);
      level->count = 0;
      for (std::size_t i = 0; i < shards; ++i) {
        const Rank begin = scratch.boundaries[first + 2 * i].low;
        level->intervals[i] = {begin, std::max(begin, scratch.boundaries[first + 2 * i + 1].low)};
        level->count += level->intervals[i].width();
      }
      level->is_shared = true;
      if (reader->sharing_ != nullptr) {
        const auto visible = reader->sharing_->visible(reader->shards_, level->intervals);
        level->count = visible.count;
        level->is_shared = visible.is_shared;
      }
      if (level->count == 0) level->clear();
    }
    scratch.clear_searches();
  }

  // The most occurrences of a suffix of `length` tokens whose next tokens are read.
  static std::size_t samples_of(std::uint32_t length) {
    return length > kShort ? kLongSamples : kShortSamples;
  }

  // Request the continuations of `level`.
  void queue(BackoffLevel& level, Scratch& scratch) const {
    scratch.queries.push_back({&shards_, vocabulary_, level.intervals, level.length,
                               samples_of(level.length), &level.next, sharing_.get(),
                               level.is_shared});
  }

  // Put the short levels into the cache that were not there.
  void cache(const PendingRequest& pending, const Evidence& out) {
    for (std::uint32_t length = 1; length <= kShort; ++length)
      if (pending.missing[length])
        cache_->insert(pending.slots[length], short_suffix(pending.tail.last(length)), number_,
                       out.levels[kLevels - length]);
  }

  const std::vector<ShardView> shards_;
  const std::uint32_t vocabulary_;
  const bool live_;
  const std::shared_ptr<SuffixCache> cache_;
  const std::shared_ptr<const Sharing> sharing_;
  const std::uint64_t number_;  // among the readers that share the cache
};

}  // namespace rest_store
