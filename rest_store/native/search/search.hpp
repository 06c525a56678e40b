// Binary searches for token sequences in shards, many at once.
//
// INTERLEAVED LOOK-UPS. The naive way: one search after the other. Each step reads the suffix array
// at a rank, and then the tokens at that position. Both are at places that no cache holds, and each
// read takes as long as hundreds of instructions.
//
// Prefetching within one search does not help: the rank of the next step depends on the comparison
// of this one, so its address is not known any sooner.
//
// The rule: many searches take turns. Each prefetches the memory of its next read, and the others
// take their steps while it is on its way. So their waits overlap, and many searches take little
// longer than one (narrow_by_keys() over keys, halve_together() over ranks).
#pragma once

#include <span>
#include <vector>

#include "search/shard_view.hpp"

namespace rest_store {

// `condition ? yes : no` without a branch: the processor could not predict it.
inline std::uint64_t select(bool condition, std::uint64_t yes, std::uint64_t no) {
  return no ^ ((yes ^ no) & (std::uint64_t{0} - condition));
}

// A search in one shard for `pattern`: bytes of tokens, big-endian, followed by eight readable
// bytes. Shard and pattern outlive it.
//
// After locate(), ranks below `low` hold suffixes less than the pattern. If `has_hit`, `hit` is a
// rank whose suffix starts with the pattern, and if `high` is above `hit`, ranks from `high` on
// hold greater suffixes that do not start with it. If not `has_hit`, ranks from `high` on hold
// greater suffixes.
struct Search {
  const ShardView* shard = nullptr;
  const std::uint8_t* pattern = nullptr;
  std::uint32_t size = 0;  // of the pattern, in bytes
  bool has_hit = false;
  std::size_t group = 0;  // number of the pattern; it may be searched in several shards
  // The keys of suffixes that start with the pattern are between these.
  std::uint64_t least = 0, greatest = 0;
  std::uint64_t base = 0;  // after narrow_by_keys(), the first key not less than `least`
  std::uint64_t span = 0;  // keys from `base` on among which that is still searched
  Rank low = 0, high = 0, hit = 0;
  Position probe = 0;  // at which the present step reads
  // Symbols at the start of a suffix that are not compared.
  static constexpr std::uint32_t skip = 0;

  Search() = default;
  // `count`: bytes of the pattern, at least 1. `of`: its group.
  Search(const ShardView& in, const std::uint8_t* bytes, std::uint32_t count, std::size_t of = 0)
      : shard(&in),
        pattern(bytes),
        size(count),
        group(of),
        least(load_big(bytes)),
        greatest(least),
        span(in.key_count) {
    if (size < 8) {
      const std::uint64_t rest = ~std::uint64_t{0} >> (8 * size);
      least &= ~rest;
      greatest |= rest;
    }
  }

  bool whole_in_key() const { return size <= 8; }
  bool failed() const { return !has_hit && low >= high; }  // the pattern does not occur

  // Narrow the search by `suffix`, which is the one at rank `middle`.
  void compare(Rank middle, const std::uint8_t* suffix) {
    const int order = compare_bytes(suffix, pattern, size);
    if (order == 0) {
      has_hit = true;
      hit = middle;
    }
    low = select(order < 0, middle + 1, low);
    high = select(order > 0, middle, high);
  }
};

// Find, for every search, the first key that is not less than the pattern. All searches take their
// steps together, and none of them has a branch that depends on a comparison.
inline void narrow_by_keys(std::span<Search> searches) {
  std::uint64_t widest = 0;
  for (const Search& s : searches) widest = std::max(widest, s.span);
  for (; widest > 0; widest /= 2)
    for (Search& s : searches) {
      const std::uint64_t half = s.span / 2;
      const std::uint64_t* middle = s.shard->keys + s.base + half;
      const std::uint64_t below = s.span > 0 && *middle < s.least;
      s.base += below * (half + 1);
      s.span = half - below * (2 * half + 1 - s.span);  // span - half - 1 of those above
      prefetch(s.shard->keys + s.base + s.span / 2);
    }
}

// The first key greater than every key of the pattern, searched upwards from `from` in doubling
// steps.
inline std::uint64_t keys_end(const Search& s, std::uint64_t from) {
  const std::uint64_t* keys = s.shard->keys;
  std::uint64_t step = 1, low = from, high = from;
  while (high < s.shard->key_count && keys[high] <= s.greatest) {
    low = high + 1;
    high = std::min(s.shard->key_count, high + step);
    step *= 2;
  }
  return static_cast<std::uint64_t>(std::upper_bound(keys + low, keys + high, s.greatest) - keys);
}

// Run binary searches over ranks together. For each item, read the suffix in the middle of its
// ranks low .. high and let `step(item, middle, suffix)` narrow them, until `done(item)`. Items
// take turns, as many as a core can have reads in flight: each prefetches an entry, then the suffix
// at that position, and then compares.
template <class Item, class Done, class Step>
void halve_together(std::span<Item> items, Done&& done, Step&& step) {
  constexpr std::size_t kLanes = 40;
  Item* live[kLanes];
  std::size_t count = 0;
  auto next = items.begin();
  const auto prefetch_entry = [](const Item& item) {
    prefetch(item.shard->entry_address((item.low + item.high) / 2));
  };
  for (;;) {
    for (; count < kLanes && next != items.end(); ++next)
      if (!done(*next)) {
        prefetch_entry(*next);
        live[count++] = &*next;
      }
    if (count == 0) return;
    for (std::size_t i = 0; i < count; ++i) {
      Item& item = *live[i];
      item.probe = item.shard->position((item.low + item.high) / 2) + item.skip;
      prefetch(item.shard->suffix(item.probe));
    }
    std::size_t unfinished = 0;
    for (std::size_t i = 0; i < count; ++i) {
      Item& item = *live[i];
      step(item, (item.low + item.high) / 2, item.shard->suffix(item.probe));
      if (done(item)) continue;
      prefetch_entry(item);
      live[unfinished++] = &item;
    }
    count = unfinished;
  }
}

// Decide for each of `groups` patterns whether it occurs in any shard: `decided[g]` is set to 1 or
// 0. As soon as one search of a group finds an occurrence, the others of the group stop: their
// bounds hold, but `has_hit` may be false although the pattern occurs.
inline void locate(std::span<Search> searches, std::size_t groups,
                   std::vector<std::uint8_t>& decided) {
  narrow_by_keys(searches);
  decided.assign(groups, 0);
  for (Search& s : searches) {
    const ShardView& shard = *s.shard;
    s.low = s.base == 0 ? 0 : (s.base - 1) * kKeyStride + 1;
    s.hit = std::min(s.base * kKeyStride, shard.entry_count);
    s.has_hit = s.whole_in_key() && s.base < shard.key_count &&
                shard.keys[s.base] <= s.greatest;  // the sampled suffix itself
    s.high = s.has_hit || s.whole_in_key()
                 ? s.hit
                 : std::min(keys_end(s, s.base) * kKeyStride, shard.entry_count);
    decided[s.group] |= s.has_hit;
  }
  halve_together(
      searches, [&](const Search& s) { return decided[s.group] || s.low >= s.high; },
      [&](Search& s, Rank middle, const std::uint8_t* suffix) {
        s.compare(middle, suffix);
        decided[s.group] |= s.has_hit;
      });
}

// Continue the searches that locate() stopped, each until `has_hit` tells if the pattern occurs.
inline void finish(std::span<Search> searches) {
  halve_together(
      searches, [](const Search& s) { return s.has_hit || s.low >= s.high; },
      [](Search& s, Rank middle, const std::uint8_t* suffix) { s.compare(middle, suffix); });
}

// A search for one boundary: the least rank in [low, high] whose suffix, without its first `skip`
// symbols, is greater than every sequence that starts with `pattern` (if `after`), or not less than
// `pattern` (if not).
struct Boundary {
  const ShardView* shard = nullptr;
  const std::uint8_t* pattern = nullptr;
  std::uint32_t size = 0;  // of the pattern, in bytes
  std::uint32_t skip = 0;
  bool after = false;
  Rank low = 0, high = 0;
  Position probe = 0;  // at which the present step reads
};

// Find all boundaries: afterwards `low` of each is the boundary. `Item` is Boundary or a type
// derived from it.
template <class Item>
void find_boundaries(std::span<Item> boundaries) {
  halve_together(
      boundaries, [](const Boundary& b) { return b.low >= b.high; },
      [](Boundary& b, Rank middle, const std::uint8_t* suffix) {
        const bool below = compare_bytes(suffix, b.pattern, b.size) < static_cast<int>(b.after);
        b.low = select(below, middle + 1, b.low);
        b.high = select(below, b.high, middle);
      });
}

// Prepare the searches for both boundaries of the interval of ranks that start with the pattern of
// `s`, after locate(). The interval is empty if the pattern does not occur.
inline void interval_boundaries(const Search& s, Boundary out[2]) {
  const std::uint64_t end = keys_end(s, s.base);
  Rank above = std::min(end * kKeyStride, s.shard->entry_count),
       below = s.has_hit ? s.hit + 1 : s.low;
  if (s.whole_in_key() && end > 0) below = std::max(below, (end - 1) * kKeyStride + 1);
  if (!s.has_hit || s.high > s.hit)
    above = std::min(above, s.high);  // otherwise its key decided, without a comparison
  above = std::max(above, below);
  out[0] = {s.shard, s.pattern, s.size, 0, false, s.low, s.has_hit ? s.hit : s.high, 0};
  out[1] = {s.shard, s.pattern, s.size, 0, true, below, above, 0};
}

}  // namespace rest_store
