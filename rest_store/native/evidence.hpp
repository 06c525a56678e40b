// What a datastore knows about the next token of a context: the continuations of several of its suffixes, the longest
// one that occurs and shorter ones.
//
// Evidence at a node of a draft tree follows from that at its parent: the occurrences of a longer suffix are a part of
// those of the shorter, and short suffixes come up again and again, so theirs are remembered.
#pragma once

#include <mutex>
#include <vector>

#include "continuations.hpp"

namespace rest_store {

constexpr std::uint32_t kShort = 4;                 // suffixes up to this length always have a rung
constexpr std::size_t kRungs = kShort + 2;          // the longest, one between, and the short ones
constexpr std::uint32_t kLongest = kMaxSuffix - 1;  // no rung grows beyond

// One suffix of the context: how often it occurs, where, and what follows.
struct Rung {
  std::uint32_t length = 0;  // tokens; 0: this rung is absent
  std::uint64_t count = 0;
  std::vector<Interval> intervals;
  Continuations next;

  void clear() {
    length = 0;
    count = 0;
    next.size = 0;
  }
};

// Of one context: rungs[0] the longest suffix that occurs, rungs[1] one between it and the short ones, if any, then
// the suffixes of 4, 3, 2 and 1 tokens. Those that do not occur have length 0.
struct Evidence {
  std::array<Rung, kRungs> rungs;

  void clear() {
    for (Rung& rung : rungs) rung.clear();
  }

  // The rung of the longest suffix of at most `limit` tokens that has one, or null.
  const Rung* longest(std::uint32_t limit = kLongest) const {
    for (const Rung& rung : rungs)
      if (rung.length > 0 && rung.length <= limit) return &rung;
    return nullptr;
  }
};

// Reads evidence from the shards of one datastore. Thread-safe: shards are read-only, the memory of short suffixes
// locks itself, scratch memory belongs to the thread.
class EvidenceReader {
 public:
  EvidenceReader(std::vector<ShardView> shards, std::uint32_t vocabulary)
      : shards_(std::move(shards)), vocabulary_(vocabulary), directory_(shards_), slots_(kSlots) {}

  std::uint32_t vocabulary() const { return vocabulary_; }
  std::uint32_t width() const { return shards_[0].width; }

  // Evidence of the context that ends in `tail`, for the root of a tree; its longest suffix is searched for.
  void root(std::span<const Token> tail, Evidence& out) {
    tail = known(tail);
    if (tail.empty()) return out.clear();
    Scratch& own = scratch();
    const Suffix suffix = suffix_of(tail);
    shorts(tail, suffix, out);
    out.rungs[0].clear();
    out.rungs[1].clear();
    if (out.rungs[2].length == 0) return;
    const Match& match = own.matcher.longest(shards_, directory_, std::span(&suffix, 1), Matcher::Find::kIntervals,
                                             [](std::size_t, std::uint32_t) { return false; })[0];
    if (match.length <= kShort) return;
    Rung& longest = out.rungs[0];
    longest.length = match.length;
    longest.count = match.count;
    longest.intervals = match.intervals;
    longest.next = own.reader.read(shards_, longest.intervals, longest.length, vocabulary_, kSamples);
    if (longest.length < kShort + 3) return;
    const std::uint32_t between = longest.length > 9 ? 8 : longest.length - 2;
    find(suffix, between, out.rungs[1]);
    Rung& rung = out.rungs[1];
    rung.next = own.reader.read(shards_, rung.intervals, rung.length, vocabulary_, kSamples);
  }

  // Evidence of the context that ends in `tail`, the last token of which was appended to the context of `parent`.
  void child(const Evidence& parent, std::span<const Token> tail, Evidence& out) {
    tail = known(tail);
    if (tail.empty()) return out.clear();
    Scratch& own = scratch();
    const Suffix suffix = suffix_of(tail);
    shorts(tail, suffix, out);
    out.rungs[0].clear();
    out.rungs[1].clear();
    std::size_t found = 0;
    for (std::size_t i = 0; i < 3 && found < 2; ++i) {
      const Rung& from = parent.rungs[i];
      if (from.length == 0 || from.length >= std::min<std::size_t>(kLongest, tail.size())) continue;
      if (narrow(from, suffix, out.rungs[found])) ++found;
    }
    for (std::size_t i = 0; i < found; ++i) {
      Rung& rung = out.rungs[i];
      rung.next = own.reader.read(shards_, rung.intervals, rung.length, vocabulary_, kSamples);
    }
  }

 private:
  static constexpr std::size_t kSamples = 24, kShortSamples = 96;
  static constexpr std::size_t kSlots = std::size_t{1} << 15, kLocks = 64;

  struct Scratch {
    Matcher matcher;
    ContinuationReader reader;
    std::vector<Search> searches;
    std::vector<std::uint8_t> decided;
    std::vector<Boundary> boundaries;
  };

  // Not inlined: code that knows the object to be the thread's looks up its address at every use.
  [[gnu::noinline]] static Scratch& scratch() {
    thread_local Scratch own;
    return own;
  }

  // The last tokens that are all tokens of this vocabulary.
  std::span<const Token> known(std::span<const Token> tail) const {
    std::size_t size = 0;
    while (size < tail.size() && tail[tail.size() - 1 - size] < vocabulary_) ++size;
    return tail.last(size);
  }

  Suffix suffix_of(std::span<const Token> tail) const {
    const auto last = tail.last(std::min<std::size_t>(tail.size(), kMaxSuffix));
    return Suffix(last.data(), last.size(), width());
  }

  // The rungs of the short suffixes, remembered or found.
  void shorts(std::span<const Token> tail, const Suffix& suffix, Evidence& out) {
    bool occurs = true;
    for (std::uint32_t length = 1; length <= kShort; ++length) {
      Rung& rung = out.rungs[kRungs - length];
      if (!occurs || length > tail.size()) {
        rung.clear();
        continue;
      }
      const ShortSuffix key = short_suffix(tail.last(length));
      if (!recall(key, rung)) {
        find(suffix, length, rung);
        rung.next = scratch().reader.read(shards_, rung.intervals, length, vocabulary_, kShortSamples);
        if (rung.count == 0) rung.clear();
        remember(key, rung);
      }
      occurs = rung.length > 0;
    }
  }

  // Where the last `length` tokens of `suffix` occur.
  void find(const Suffix& suffix, std::uint32_t length, Rung& rung) const {
    Scratch& own = scratch();
    own.searches.clear();
    for (const ShardView& shard : shards_) own.searches.emplace_back(shard, suffix.last(length), length * width());
    locate(own.searches, 1, own.decided);
    own.boundaries.clear();
    rung.length = length;
    if (own.decided[0]) {
      own.boundaries.resize(2 * shards_.size());
      for (std::size_t i = 0; i < shards_.size(); ++i) interval_boundaries(own.searches[i], &own.boundaries[2 * i]);
      find_boundaries(own.boundaries);
    }
    bound(rung);
  }

  // The occurrences of `from` that go on with the last token of `suffix`; false if there are none.
  bool narrow(const Rung& from, const Suffix& suffix, Rung& to) const {
    Scratch& own = scratch();
    own.boundaries.clear();
    const std::uint32_t length = from.length + 1;
    for (std::size_t i = 0; i < shards_.size(); ++i)
      for (const bool after : {false, true})
        own.boundaries.push_back({&shards_[i], suffix.last(length), length * width(), 0, after, from.intervals[i].begin,
                                  from.intervals[i].end, 0});
    find_boundaries(own.boundaries);
    to.length = length;
    bound(to);
    if (to.count == 0) to.clear();
    return to.count > 0;
  }

  void bound(Rung& rung) const {
    const auto& boundaries = scratch().boundaries;
    rung.intervals.assign(shards_.size(), {});
    rung.count = 0;
    if (boundaries.empty()) return;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const Rank begin = boundaries[2 * i].low;
      rung.intervals[i] = {begin, std::max(begin, boundaries[2 * i + 1].low)};
      rung.count += rung.intervals[i].width();
    }
  }

  // The tokens of a short suffix, the last one first; the rest of the array holds a value that is no token.
  using ShortSuffix = std::array<Token, kShort>;
  static ShortSuffix short_suffix(std::span<const Token> tokens) {
    ShortSuffix out;
    out.fill(~Token{0});
    std::copy(tokens.rbegin(), tokens.rend(), out.begin());
    return out;
  }

  static std::size_t slot_of(const ShortSuffix& suffix) {
    std::uint64_t hash = 0;
    for (const Token token : suffix) {
      hash = (hash ^ token) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29;
    }
    return (hash >> 20) % kSlots;
  }

  struct Slot {
    ShortSuffix suffix{};
    bool used = false;
    Rung rung;
  };

  bool recall(const ShortSuffix& suffix, Rung& rung) {
    const std::size_t place = slot_of(suffix);
    const std::lock_guard lock(locks_[place % kLocks]);
    const Slot& slot = slots_[place];
    if (!slot.used || slot.suffix != suffix) return false;
    rung = slot.rung;
    return true;
  }

  void remember(const ShortSuffix& suffix, const Rung& rung) {
    const std::size_t place = slot_of(suffix);
    const std::lock_guard lock(locks_[place % kLocks]);
    slots_[place] = {suffix, true, rung};
  }

  const std::vector<ShardView> shards_;
  const std::uint32_t vocabulary_;
  KeyDirectory directory_;
  std::vector<Slot> slots_;
  std::array<std::mutex, kLocks> locks_;
};

}  // namespace rest_store
