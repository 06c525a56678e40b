// From the suffixes of a shard to those of the shard without some of its documents.
//
// REMOVAL WITHOUT SORTING. The naive way: sort the symbols that remain.
//
// Two suffixes of different documents compare by their symbols up to the first separator, unless
// they are equal so far. These symbols stay as they are. So the suffixes that remain keep their
// order, and each is only moved to the front, by the number of symbols removed before it.
//
// The rule: go through the suffix array once, leave out the positions in gaps, and shift the
// others. Suffixes that are equal up to a separator keep their order, whatever follows now. No
// query sees that order, since no pattern holds a separator. But the result may differ from that of
// sort_and_pack(), which goes on comparing.
#pragma once

#include <span>
#include <stdexcept>
#include <vector>

#include "search/shard_view.hpp"
#include "sort/bit_string.hpp"

namespace rest_store {

// The positions of removed documents.
class Gaps {
 public:
  static constexpr Position kRemoved = ~Position{0};

  // Gap i is `begins[i] .. ends[i] - 1`; the gaps ascend. Throws std::out_of_range if they do not,
  // or if they do not end by `position_count`.
  Gaps(std::span<const Position> begins, std::span<const Position> ends, Position position_count)
      : begins_(begins), ends_(ends) {
    if (begins.size() != ends.size()) throw std::out_of_range("gaps without an end");
    Position removed = 0, before = 0;
    for (std::size_t i = 0; i < begins.size(); ++i) {
      if (begins[i] < before || ends[i] <= begins[i] || ends[i] > position_count)
        throw std::out_of_range("gaps that do not ascend");
      before = ends[i];
      removed_.push_back(removed);
      removed += ends[i] - begins[i];
    }
    removed_.push_back(removed);
    std::size_t gap = 0;
    for (Position at = 0; at < position_count; at += kBlock) {
      while (gap < ends.size() && ends[gap] <= at) ++gap;
      first_.push_back(gap);
    }
  }

  // Where a position of the shard is afterwards; kRemoved: it is in a gap.
  Position moved(Position position) const {
    std::size_t gap = first_[position / kBlock];
    while (gap < ends_.size() && ends_[gap] <= position) ++gap;
    if (gap < ends_.size() && begins_[gap] <= position) return kRemoved;
    return position - removed_[gap];
  }

 private:
  static constexpr Position kBlock = 256;

  std::span<const Position> begins_, ends_;
  std::vector<Position> removed_;   // before each gap; and in all of them
  std::vector<std::size_t> first_;  // of each block of positions: the first gap that ends in it or
                                    // later
};

// Write the keys and the entries of a shard without the documents in gaps.
//
// `begins`, `ends`: the gaps, as Gaps takes them. `symbols`: those that remain, with a tail of
// eight bytes. `entry_count`: tokens among them. `bits`, `keys`, `entries`: as in pack_suffixes().
// Returns whether there are `entry_count` suffixes; if not, the shard is damaged. Throws
// std::out_of_range if the sizes are not those of these symbols.
inline bool pack_remaining(const ShardView& shard, std::span<const Position> begins,
                           std::span<const Position> ends, std::span<const std::uint8_t> symbols,
                           std::uint64_t entry_count, std::uint32_t bits,
                           std::span<std::uint64_t> keys, std::span<std::uint8_t> entries) {
  if (symbols.size() < 8 || bits < 1 || bits > 30 ||
      keys.size() != (entry_count + kKeyStride - 1) / kKeyStride ||
      entries.size() != 8 * ((entry_count * bits + 63) / 64) + 8)
    throw std::out_of_range("arrays of other sizes");
  const Gaps gaps(begins, ends, shard.position_count);
  const std::uint64_t positions = (symbols.size() - 8) / shard.width;
  BitString packed(entries.data(), bits);
  std::uint64_t count = 0;
  for (Rank rank = 0; rank < shard.entry_count; ++rank) {
    const Position before = shard.position(rank);
    if (before >= shard.position_count) return false;
    const Position position = gaps.moved(before);
    if (position == Gaps::kRemoved) continue;
    if (count == entry_count || position >= positions) return false;
    if (count % kKeyStride == 0)
      keys[count / kKeyStride] = load_big(symbols.data() + shard.width * position);
    ++count;
    packed.append(position);
  }
  packed.finish();
  return count == entry_count;
}

}  // namespace rest_store
