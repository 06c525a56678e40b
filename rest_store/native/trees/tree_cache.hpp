// Trees to heavy matches, kept: the few matches with many occurrences come up again and again, and their trees cost
// the most. A shard never changes, so an answer is never stale.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "trees/draft.hpp"

namespace rest_store {

// A hash table that forgets: each answer may lie in one of a few slots, a new one takes the place of that of least
// worth there, and nodes in all are bounded. Thread-safe.
class TreeCache {
 public:
  static constexpr std::uint64_t kHeavy = 64;  // occurrences from which on an answer is worth keeping

  // The tree of the match of `tokens`, as a tokens file stores them, or null.
  std::shared_ptr<KeptTree> lookup(std::string_view tokens, std::uint32_t max_nodes, std::uint32_t max_depth) {
    const std::uint64_t hash = hash_of(tokens, max_nodes, max_depth);
    Segment& segment = segments_[hash % kSegments];
    const std::lock_guard lock(segment.mutex);
    if (segment.entries.empty()) return nullptr;
    const std::size_t first = Segment::first(hash);
    for (std::size_t slot = first; slot < first + kWays; ++slot) {
      const Entry& entry = segment.entries[slot];
      if (segment.hashes[slot] == hash && entry.tree && entry.max_nodes == max_nodes && entry.max_depth == max_depth &&
          entry.tokens == tokens)
        return entry.tree;
    }
    return nullptr;
  }

  // Keep the tree of a match of `tokens`, which has `worth` occurrences; those that it drives out are moved to
  // `dropped`. A tree of worth 0, quickly made again, drives out none.
  void insert(std::string_view tokens, std::uint64_t worth, std::uint32_t max_nodes, std::uint32_t max_depth,
              std::shared_ptr<KeptTree> tree, std::vector<std::shared_ptr<KeptTree>>& dropped) {
    const std::uint64_t hash = hash_of(tokens, max_nodes, max_depth);
    Segment& segment = segments_[hash % kSegments];
    const std::size_t nodes = (tree->block.size() + tokens.size()) / kNodeSize + 1;
    Entry entry{max_nodes, max_depth, worth, nodes, std::string(tokens), std::move(tree)};
    const std::lock_guard lock(segment.mutex);
    if (segment.entries.empty()) {
      segment.hashes.resize(kSets * kWays);
      segment.entries.resize(kSets * kWays);
    }
    const auto first = segment.entries.begin() + static_cast<std::ptrdiff_t>(Segment::first(hash));
    const auto least =
        std::min_element(first, first + kWays, [](const Entry& a, const Entry& b) { return a.rank() < b.rank(); });
    if (worth == 0 && (least->tree || segment.nodes + nodes > kNodes)) return;
    segment.put(static_cast<std::size_t>(least - segment.entries.begin()), hash, std::move(entry), dropped);
    while (segment.nodes > kNodes) segment.put(segment.hand++ % (kSets * kWays), 0, {}, dropped);
  }

 private:
  static constexpr std::size_t kSegments = 16;  // each with a lock of its own
  static constexpr std::size_t kSets = 128;     // in a segment, of
  static constexpr std::size_t kWays = 8;       // slots each: fewer, and entries drive out others while slots are free
  static constexpr std::size_t kNodes = 32768;  // and tokens in a segment; 10 MB in all, and 3 of objects

  struct Entry {
    std::uint32_t max_nodes = 0, max_depth = 0;
    std::uint64_t worth = 0;
    std::size_t nodes = 0;  // about as many fit in what it takes
    std::string tokens;
    std::shared_ptr<KeptTree> tree;  // null: free

    std::uint64_t rank() const { return tree ? worth + 1 : 0; }
  };

  struct Segment {
    std::mutex mutex;
    std::vector<Entry> entries;  // none until the first is kept
    std::vector<std::uint64_t> hashes;
    std::size_t nodes = 0, hand = 0;

    static std::size_t first(std::uint64_t hash) { return hash / kSegments % kSets * kWays; }

    void put(std::size_t slot, std::uint64_t hash, Entry entry, std::vector<std::shared_ptr<KeptTree>>& dropped) {
      if (entries[slot].tree) dropped.push_back(entries[slot].tree);
      nodes += entry.nodes;
      nodes -= entries[slot].nodes;
      entries[slot] = std::move(entry);
      hashes[slot] = hash;
    }
  };

  static std::uint64_t hash_of(std::string_view tokens, std::uint32_t max_nodes, std::uint32_t max_depth) {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
    std::uint64_t hash = std::uint64_t{max_nodes} << 32 | max_depth << 16 | tokens.size();
    for (std::size_t at = 0; at < tokens.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, tokens.data() + at, std::min<std::size_t>(8, tokens.size() - at));
      hash = (hash ^ word) * kFactor;
      hash ^= hash >> 29;
    }
    return hash;
  }

  std::array<Segment, kSegments> segments_;
};

}  // namespace rest_store
