// Searches for token sequences in shards, many at once: each step of each search touches memory that was prefetched
// while the others took theirs, so that a batch pays for bandwidth, not for latency.
#pragma once

#include <span>
#include <vector>

#include "search/shard_view.hpp"

namespace rest_store {

// `yes` or `no` without a branch: which way a search goes on, nobody can predict.
inline std::uint64_t chosen(bool condition, std::uint64_t yes, std::uint64_t no) {
  return no ^ ((yes ^ no) & (std::uint64_t{0} - condition));
}

// One search: does `pattern` (bytes of tokens, big-endian, eight readable bytes behind it) occur in `shard`, and where.
// After locate(): ranks below `low` hold suffixes less than the pattern; if `found`, `hit` is a rank whose suffix
// starts with the pattern, and ranks from `high` on, if that is above `hit`, hold greater suffixes that do not; if not,
// ranks from `high` on hold greater ones.
struct Search {
  const ShardView* shard = nullptr;
  const std::uint8_t* pattern = nullptr;
  std::uint32_t size = 0;  // bytes
  bool found = false;
  std::size_t group = 0;                  // searches of one pattern in several shards
  std::uint64_t least = 0, greatest = 0;  // keys of suffixes that start with the pattern are in least .. greatest
  std::uint64_t base = 0;                 // the first key not less than `least`
  std::uint64_t span = 0;
  Rank low = 0, high = 0, hit = 0;
  Position probe = 0;
  static constexpr std::uint32_t skip = 0;  // symbols of a suffix before those compared

  Search() = default;
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

  std::uint64_t left() const { return high - std::min(low, high); }  // ranks where an occurrence may be
  bool whole_in_key() const { return size <= 8; }
  bool failed() const { return !found && low >= high; }  // the pattern does not occur

  // Learn from the suffix at rank `middle`.
  void compare(Rank middle, const std::uint8_t* suffix) {
    const int order = compare_bytes(suffix, pattern, size);
    if (order == 0) {
      found = true;
      hit = middle;
    }
    low = chosen(order < 0, middle + 1, low);
    high = chosen(order > 0, middle, high);
  }

  // The first key not less than `least` is one of `places`, or the one behind.
  void keys_within(Interval places) {
    base = places.begin;
    span = places.width();
    prefetch(shard->keys + base + span / 2);
  }
};

// Halve the keys of every search in step until the first that is not less than the pattern is known.
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

// The first key greater than every key of the pattern, searched upwards from `from` in doubling steps.
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

// Show each item the suffix in the middle of its ranks low .. high, and let `step(item, middle, suffix)` narrow them,
// until it is `done(item)`. Items take turns, as many at once as a core keeps reads in flight: each asks for an entry,
// then for the suffix it names, and compares when that has come.
template <class Item, class Done, class Step>
void halve_together(std::span<Item> items, Done&& done, Step&& step) {
  constexpr std::size_t kLanes = 40;
  Item* live[kLanes];
  std::size_t count = 0;
  auto next = items.begin();
  const auto ask = [](const Item& item) { prefetch(item.shard->entry_address((item.low + item.high) / 2)); };
  for (;;) {
    for (; count < kLanes && next != items.end(); ++next)
      if (!done(*next)) {
        ask(*next);
        live[count++] = &*next;
      }
    if (count == 0) return;
    for (std::size_t i = 0; i < count; ++i) {
      Item& item = *live[i];
      item.probe = item.shard->position((item.low + item.high) / 2) + item.skip;
      prefetch(item.shard->suffix(item.probe));
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      Item& item = *live[i];
      step(item, (item.low + item.high) / 2, item.shard->suffix(item.probe));
      if (done(item)) continue;
      ask(item);
      live[kept++] = &item;
    }
    count = kept;
  }
}

// Find out for each of `groups` groups of searches whether any finds an occurrence. Those of a group that is decided
// may be left half-way: their bounds hold, but `found` may be false where the pattern occurs.
inline void locate(std::span<Search> searches, std::size_t groups, std::vector<std::uint8_t>& decided) {
  narrow_by_keys(searches);
  decided.assign(groups, 0);
  for (Search& s : searches) {
    const ShardView& shard = *s.shard;
    s.low = s.base == 0 ? 0 : (s.base - 1) * kKeyStride + 1;
    s.hit = std::min(s.base * kKeyStride, shard.entry_count);
    s.found =
        s.whole_in_key() && s.base < shard.key_count && shard.keys[s.base] <= s.greatest;  // the sampled suffix itself
    s.high = s.found || s.whole_in_key() ? s.hit : std::min(keys_end(s, s.base) * kKeyStride, shard.entry_count);
    decided[s.group] |= s.found;
  }
  halve_together(
      searches, [&](const Search& s) { return decided[s.group] || s.low >= s.high; },
      [&](Search& s, Rank middle, const std::uint8_t* suffix) {
        s.compare(middle, suffix);
        decided[s.group] |= s.found;
      });
}

// Go on with searches that locate() may have left half-way, each until it has found an occurrence or there is none.
inline void finish(std::span<Search> searches) {
  halve_together(
      searches, [](const Search& s) { return s.found || s.low >= s.high; },
      [](Search& s, Rank middle, const std::uint8_t* suffix) { s.compare(middle, suffix); });
}

// One boundary: the least rank in [low, high] whose suffix, from `skip` symbols on, is greater than `pattern` (if
// `after`) or not less than it.
struct Boundary {
  const ShardView* shard = nullptr;
  const std::uint8_t* pattern = nullptr;
  std::uint32_t size = 0;
  std::uint32_t skip = 0;
  bool after = false;
  Rank low = 0, high = 0;
  Position probe = 0;
};

// Narrow every boundary to at most `gap` ranks of doubt; with no doubt left, `low` is the boundary.
inline void find_boundaries(std::span<Boundary> boundaries, std::uint64_t gap = 0) {
  halve_together(
      boundaries, [gap](const Boundary& b) { return b.low + gap >= b.high; },
      [](Boundary& b, Rank middle, const std::uint8_t* suffix) {
        const bool below = compare_bytes(suffix, b.pattern, b.size) < static_cast<int>(b.after);
        b.low = chosen(below, middle + 1, b.low);
        b.high = chosen(below, b.high, middle);
      });
}

// The two boundaries of the interval of a search, which is empty if the pattern does not occur.
inline void interval_boundaries(const Search& s, Boundary out[2]) {
  const std::uint64_t end = keys_end(s, s.base);
  Rank above = std::min(end * kKeyStride, s.shard->entry_count), below = s.found ? s.hit + 1 : s.low;
  if (s.whole_in_key() && end > 0) below = std::max(below, (end - 1) * kKeyStride + 1);
  if (!s.found || s.high > s.hit) above = std::min(above, s.high);  // else found by its key, and nothing compared
  above = std::max(above, below);
  out[0] = {s.shard, s.pattern, s.size, 0, false, s.low, s.found ? s.hit : s.high, 0};
  out[1] = {s.shard, s.pattern, s.size, 0, true, below, above, 0};
}

}  // namespace rest_store
