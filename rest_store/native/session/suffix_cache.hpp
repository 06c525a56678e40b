// A cache of the evidence of short suffixes. These come up again and again.
//
// The readers of one datastore share it. A live datastore has a new reader whenever its shards
// change. Entries of earlier readers are overwritten in place: freeing thousands of slots at
// each change would delay drafts.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "search/fork_mutex.hpp"
#include "session/continuations.hpp"

namespace rest_store {

// One suffix of the context: its count, its occurrences and its continuations.
struct BackoffLevel {
  std::uint32_t length = 0;         // tokens; 0: no such level
  std::uint64_t count = 0;          // occurrences that the reader may learn of
  bool is_shared = true;            // whether these are all occurrences; else the reader's own
  std::vector<Interval> intervals;  // of all occurrences, one for each shard
  Continuations next;

  void clear() {
    length = 0;
    count = 0;
    is_shared = true;
    next.size = 0;
  }
};

// Has one slot for each suffix, and many suffixes for each slot. Thread-safe.
class SuffixCache {
 public:
  // `shards`: their number in the datastore. A live datastore has few slots, since most of their
  // contents are soon out of date. A datastore of many shards has few, too, since a slot has an
  // interval for each shard.
  SuffixCache(std::size_t shards, bool live)
      : slots_(std::clamp<std::size_t>(kMemory / (sizeof(Slot) + shards * sizeof(Interval)), 1,
                                       live ? kFewSlots : kSlots)) {}
  ~SuffixCache() {
    for (const auto& slot : slots_) delete slot.load();
  }

  // Returns the number of a new reader. No other reader has it.
  std::uint64_t add_reader() { return ++readers_; }

  // The index of the only slot that may hold `suffix`.
  std::size_t index_of(const ShortSuffix& suffix) const {
    return (hash_of(suffix) >> 20) % slots_.size();
  }

  // Prefetch the memory that prefetch_slot() reads; prefetch_slot() prefetches that of find().
  void prefetch_index(std::size_t index) const {
    prefetch(reinterpret_cast<const std::uint8_t*>(&slots_[index]));
  }
  void prefetch_slot(std::size_t index) const {
    const Slot* slot = slots_[index].load(std::memory_order_relaxed);
    if (slot == nullptr) return;
    for (std::size_t at = 0; at < sizeof(Slot); at += 64)
      prefetch(reinterpret_cast<const std::uint8_t*>(slot) + at);
  }

  // Copy the entry of `reader` for `suffix`, which is at `index` if anywhere, into `level`. Returns
  // whether it was there; if not, `level` is as it was.
  bool find(std::size_t index, const ShortSuffix& suffix, std::uint64_t reader,
            BackoffLevel& level) {
    const std::lock_guard lock(locks_[index % kLocks]);
    const Slot* slot = slots_[index].load(std::memory_order_relaxed);
    if (slot == nullptr || slot->reader != reader || slot->suffix != suffix) return false;
    level = slot->level;
    return true;
  }

  // Put an entry into the slot at `index`, in the place of the one that is there. Throws
  // std::bad_alloc, with no entry in the slot, if there is not enough memory.
  void insert(std::size_t index, const ShortSuffix& suffix, std::uint64_t reader,
              const BackoffLevel& level) {
    const std::lock_guard lock(locks_[index % kLocks]);
    Slot* slot = slots_[index].load(std::memory_order_relaxed);
    if (slot == nullptr)
      return slots_[index].store(new Slot{reader, suffix, level}, std::memory_order_relaxed);
    slot->reader = kNoReader;  // if there is no memory for the level, the slot has no entry
    slot->suffix = suffix;
    slot->level = level;  // reuses the slot's memory
    slot->reader = reader;
  }

 private:
  static constexpr std::uint64_t kNoReader = 0;
  static constexpr std::size_t kSlots = std::size_t{1} << 17, kFewSlots = std::size_t{1} << 13,
                               kLocks = 64;
  static constexpr std::size_t kMemory = std::size_t{64} << 20;  // most bytes of all slots

  struct Slot {
    std::uint64_t reader;
    ShortSuffix suffix;
    BackoffLevel level;
  };

  // Made when they are first filled, so that opening a datastore costs little. Written under a
  // lock; never replaced, so that their memory may be prefetched without one.
  std::vector<std::atomic<Slot*>> slots_;
  std::array<ForkMutex, kLocks> locks_;
  std::atomic<std::uint64_t> readers_ = kNoReader;
};

}  // namespace rest_store
