// What a datastore knows about the next token of a context: the continuations of several of its suffixes, the longest
// one that occurs and shorter ones.
//
// Evidence at a node of a draft tree follows from that at its parent: the occurrences of a longer suffix are a part of
// those of the shorter, and short suffixes come up again and again, so theirs are remembered.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "session/continuations.hpp"

namespace rest_store {

constexpr std::uint32_t kShort = 4;                 // suffixes up to this length always have a level
constexpr std::size_t kLevels = kShort + 2;         // the longest, one between, and the short ones
constexpr std::uint32_t kLongest = kMaxSuffix - 1;  // no level grows beyond

// One suffix of the context: how often it occurs, where, and what follows.
struct BackoffLevel {
  std::uint32_t length = 0;  // tokens; 0: this level is absent
  std::uint64_t count = 0;
  std::vector<Interval> intervals;
  Continuations next;

  void clear() {
    length = 0;
    count = 0;
    next.size = 0;
  }
};

// Of one context: levels[0] the longest suffix that occurs, levels[1] one between it and the short ones, if any, then
// the suffixes of 4, 3, 2 and 1 tokens. Those that do not occur have length 0.
struct Evidence {
  std::array<BackoffLevel, kLevels> levels;

  void clear() {
    for (BackoffLevel& level : levels) level.clear();
  }

  // The level of the longest suffix of at most `limit` tokens that has one, or null.
  const BackoffLevel* longest(std::uint32_t limit = kLongest) const {
    for (const BackoffLevel& level : levels)
      if (level.length > 0 && level.length <= limit) return &level;
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
    own.clear();
    const Missing missing = shorts(tail, suffix, nullptr, out);
    settle();
    queue(missing, out);
    out.levels[0].clear();
    out.levels[1].clear();
    if (out.levels[2].length > 0) {
      const Match& match = own.matcher.longest(shards_, directory_, std::span(&suffix, 1), Matcher::Find::kIntervals,
                                               [](std::size_t, std::uint32_t) { return false; })[0];
      if (match.length > kShort) {
        BackoffLevel& longest = out.levels[0];
        longest.length = match.length;
        longest.count = match.count;
        longest.intervals = match.intervals;
        queue(longest, kSamples);
        if (longest.length >= kShort + 3) {
          seek(suffix, longest.length > 9 ? 8 : longest.length - 2, out.levels[1]);
          settle();
          queue(out.levels[1], kSamples);
        }
      }
    }
    own.reader.read(own.queries);
    remember(tail, missing, out);
  }

  // Evidence of the context that ends in `tail`, the last token of which was appended to the context of `parent`.
  struct Child {
    EvidenceReader* reader;
    const Evidence* parent;
    std::span<const Token> tail;
    Evidence* out;
  };

  // Read evidence for all of `children`, which wait for memory together.
  static void read(std::span<const Child> children) {
    Scratch& own = scratch();
    own.clear();
    own.children.clear();
    own.children.reserve(children.size());  // what is sought points into them
    own.longer.resize(std::max(own.longer.size(), children.size()));
    for (std::size_t i = 0; i < children.size(); ++i) {
      const auto& [reader, parent, whole, out] = children[i];
      const std::span<const Token> tail = reader->known(whole);
      own.children.push_back({tail, reader->suffix_of(tail), {}});
      for (std::uint32_t length = 1; length <= std::min<std::size_t>(kShort, tail.size()); ++length)
        reader->ask_for(short_suffix(tail.last(length)));
    }
    for (std::size_t i = 0; i < children.size(); ++i) {
      const auto& [reader, parent, whole, out] = children[i];
      Begun& begun = own.children[i];
      const std::span<const Token> tail = begun.tail;
      for (BackoffLevel& level : own.longer[i]) level.clear();
      if (tail.empty()) continue;
      begun.missing = reader->shorts(tail, begun.suffix, parent, *out);
      for (std::size_t level = 0; level < kLonger; ++level) {
        const BackoffLevel& from = parent->levels[level];
        if (from.length == 0 || from.length >= std::min<std::size_t>(kLongest, tail.size())) continue;
        reader->narrow(from, begun.suffix, own.longer[i][level]);
      }
    }
    settle();
    for (std::size_t i = 0; i < children.size(); ++i) {
      const auto& [reader, parent, whole, out] = children[i];
      if (own.children[i].tail.empty()) {
        out->clear();
        continue;
      }
      reader->queue(own.children[i].missing, *out);
      out->levels[0].clear();
      out->levels[1].clear();
      std::size_t found = 0;
      for (BackoffLevel& level : own.longer[i])
        if (level.length > 0 && found < 2) {
          std::swap(out->levels[found], level);
          reader->queue(out->levels[found++], kSamples);
        }
    }
    own.reader.read(own.queries);
    for (std::size_t i = 0; i < children.size(); ++i)
      children[i].reader->remember(own.children[i].tail, own.children[i].missing, *children[i].out);
  }

 private:
  static constexpr std::size_t kSamples = 24, kShortSamples = 96;
  static constexpr std::size_t kSlots = std::size_t{1} << 15, kLocks = 64;
  static constexpr std::size_t kLonger = 3;  // levels of a parent that those longer than kShort may follow from

  using Missing = std::array<bool, kShort + 1>;  // by length: whether a short suffix was not remembered

  // A child on its way.
  struct Begun {
    std::span<const Token> tail;
    Suffix suffix;
    Missing missing;
  };

  // A level whose intervals are being searched for, and the first of their boundaries.
  struct Sought {
    BackoffLevel* level;
    std::size_t shards;
    std::size_t first;
  };

  struct Scratch {
    Matcher matcher;
    ContinuationReader reader;
    std::vector<Search> searches;
    std::vector<std::uint8_t> decided;
    std::vector<Boundary> boundaries;
    std::vector<Sought> searched, sought;  // from the whole of the shards; within intervals that are known
    std::vector<ContinuationQuery> queries;
    std::vector<Begun> children;
    std::vector<std::array<BackoffLevel, kLonger>> longer;  // of each child

    void clear() {
      searches.clear();
      boundaries.clear();
      searched.clear();
      sought.clear();
      queries.clear();
    }
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

  // Recall the levels of the short suffixes, and begin the search for those that are not remembered, among the
  // occurrences of `parent`'s if there is one.
  Missing shorts(std::span<const Token> tail, const Suffix& suffix, const Evidence* parent, Evidence& out) {
    Missing missing{};
    bool occurs = true;
    for (std::uint32_t length = 1; length <= kShort; ++length) {
      BackoffLevel& level = out.levels[kLevels - length];
      if (occurs && length > 1 && parent != nullptr) occurs = parent->levels[kLevels - length + 1].length > 0;
      if (!occurs || length > tail.size()) {
        level.clear();
        continue;
      }
      if (recall(short_suffix(tail.last(length)), level)) {
        occurs = level.length > 0;
        continue;
      }
      missing[length] = true;
      if (length > 1 && parent != nullptr) narrow(parent->levels[kLevels - length + 1], suffix, level);
      else seek(suffix, length, level);
    }
    return missing;
  }

  // Begin to search for where the last `length` tokens of `suffix` occur.
  void seek(const Suffix& suffix, std::uint32_t length, BackoffLevel& level) {
    Scratch& own = scratch();
    level.length = length;
    KeyDirectory::Walk walk{0};
    for (const ShardView& shard : shards_) {
      own.searches.emplace_back(shard, suffix.last(length), length * width(), own.searched.size());
      walk.least = own.searches.back().least;
    }
    directory_.descend(std::span(&walk, 1));
    for (std::size_t i = 0; i < shards_.size(); ++i)
      own.searches[own.searches.size() - shards_.size() + i].keys_within(directory_.places(walk, i));
    own.searched.push_back({&level, shards_.size(), own.searches.size() - shards_.size()});
  }

  // Begin to search for the occurrences of `from` that go on with the last token of `suffix`.
  void narrow(const BackoffLevel& from, const Suffix& suffix, BackoffLevel& to) const {
    Scratch& own = scratch();
    to.length = from.length + 1;
    own.sought.push_back({&to, shards_.size(), own.boundaries.size()});
    for (std::size_t i = 0; i < shards_.size(); ++i)
      for (const bool after : {false, true})
        own.boundaries.push_back({&shards_[i], suffix.last(1), width(), from.length, after, from.intervals[i].begin,
                                  from.intervals[i].end, 0});
  }

  // End all searches that were begun; the levels of what does not occur are cleared.
  static void settle() {
    Scratch& own = scratch();
    if (!own.searched.empty()) locate(own.searches, own.searched.size(), own.decided);
    for (std::size_t group = 0; group < own.searched.size(); ++group) {
      Sought found = own.searched[group];
      if (!own.decided[group]) {
        found.level->clear();
        continue;
      }
      const std::size_t first = std::exchange(found.first, own.boundaries.size());
      own.boundaries.resize(found.first + 2 * found.shards);
      for (std::size_t i = 0; i < found.shards; ++i)
        interval_boundaries(own.searches[first + i], &own.boundaries[found.first + 2 * i]);
      own.sought.push_back(found);
    }
    find_boundaries(own.boundaries);
    for (const auto& [level, shards, first] : own.sought) {
      level->intervals.resize(shards);
      level->count = 0;
      for (std::size_t i = 0; i < shards; ++i) {
        const Rank begin = own.boundaries[first + 2 * i].low;
        level->intervals[i] = {begin, std::max(begin, own.boundaries[first + 2 * i + 1].low)};
        level->count += level->intervals[i].width();
      }
      if (level->count == 0) level->clear();
    }
    own.searches.clear();
    own.boundaries.clear();
    own.searched.clear();
    own.sought.clear();
  }

  // Have the continuations of `level` read.
  void queue(BackoffLevel& level, std::size_t samples) const {
    scratch().queries.push_back({&shards_, vocabulary_, level.intervals, level.length, samples, &level.next});
  }
  void queue(const Missing& missing, Evidence& out) const {
    for (std::uint32_t length = 1; length <= kShort; ++length)
      if (BackoffLevel& level = out.levels[kLevels - length]; missing[length] && level.length > 0)
        queue(level, kShortSamples);
  }

  void remember(std::span<const Token> tail, const Missing& missing, const Evidence& out) {
    for (std::uint32_t length = 1; length <= kShort; ++length)
      if (missing[length]) remember(short_suffix(tail.last(length)), out.levels[kLevels - length]);
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
    BackoffLevel level;
  };

  // Have the memory fetched that recall() will read.
  void ask_for(const ShortSuffix& suffix) const {
    const auto* slot = reinterpret_cast<const std::uint8_t*>(&slots_[slot_of(suffix)]);
    for (std::size_t at = 0; at < sizeof(Slot); at += 64) prefetch(slot + at);
  }

  bool recall(const ShortSuffix& suffix, BackoffLevel& level) {
    const std::size_t place = slot_of(suffix);
    const std::lock_guard lock(locks_[place % kLocks]);
    const Slot& slot = slots_[place];
    if (!slot.used || slot.suffix != suffix) return false;
    level = slot.level;
    return true;
  }

  void remember(const ShortSuffix& suffix, const BackoffLevel& level) {
    const std::size_t place = slot_of(suffix);
    const std::lock_guard lock(locks_[place % kLocks]);
    slots_[place] = {suffix, true, level};
  }

  const std::vector<ShardView> shards_;
  const std::uint32_t vocabulary_;
  KeyDirectory directory_;
  std::vector<Slot> slots_;
  std::array<std::mutex, kLocks> locks_;
};

}  // namespace rest_store
