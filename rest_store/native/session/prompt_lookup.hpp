// Prompt lookup (Saxena, Prompt Lookup Decoding, 2023): the tokens that followed earlier
// occurrences of the context's suffixes in the prompt and the output so far, at several suffix
// lengths.
//
// For each of a few lengths, a hash table holds where each n-gram of that length ended last, and
// each position links to the occurrence before. Appending a token and reading a bounded number of
// recent occurrences take constant time, whatever the length of the text and whatever stands in it:
// each of them reads a bounded number of entries of a table, also of a text that was made so that
// its n-grams meet in one place. What such a text has too many of is forgotten, the oldest first;
// it loses drafts of its own session, and costs nobody time.
//
// References, which the output will probably resemble, come before the prompt. After each of them
// is a separator, which no match and no continuation crosses.
#pragma once

#include <bit>
#include <utility>

#include "session/continuations.hpp"

namespace rest_store {

constexpr std::array<std::uint32_t, 5> kOrders{1, 2, 3, 4, 8};

// A token that followed an occurrence.
struct LookupCandidate {
  Token token = 0;
  std::uint32_t length = 0;  // of the longest match that it follows, in tokens
  std::uint32_t age =
      0;  // tokens since it last followed a match of the longest order that it follows
  bool written = false;  // whether that was in the output or a reference, not in the prompt
  std::array<float, 3> shares{};  // of recent occurrences of the suffixes of 1, 2 and 4 tokens,
                                  // recent ones weigh more
};

struct PromptMatches {
  std::uint32_t length = 0;  // of the longest match, in tokens
  std::array<std::uint32_t, 3>
      counts{};  // occurrences seen of the suffixes of 1, 2 and 4 tokens, bounded
  std::vector<LookupCandidate> candidates;
};

class PromptLookup {
 public:
  // Before the prompt.
  void add_reference(std::span<const Token> tokens) {
    append(tokens);
    append(std::span(&kNoToken, 1));
    text_ = tokens_.size();
  }

  // The tokens so far are the prompt; the output follows.
  void end_prompt() { prompt_ = tokens_.size(); }

  // If there is not enough memory, the text is as it was.
  void append(std::span<const Token> tokens) {
    const std::size_t from = tokens_.size(), size = from + tokens.size();
    for (Table& table : tables_) table.reserve(table.used + tokens.size());
    before_.resize(size);
    occurrence_.resize(size);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    for (std::size_t i = 0; i < kOrders.size(); ++i) append(i, from);
    for (std::size_t i = from; i < size; ++i)
      occurrence_[i] = before_[i][0] == 0 ? 1 : occurrence_[before_[i][0] - 1] + 1;
  }

  // Prompt and output.
  std::span<const Token> text() const { return std::span(tokens_).subspan(text_); }

  static constexpr std::size_t kWalk = 24;  // occurrences seen of one suffix
  static constexpr std::size_t kMaxCandidates = kWalk * kOrders.size();

  // Most bytes that a token may take; tables are at most half full and double.
  static constexpr std::size_t kTokenMemory =
      4 * sizeof(std::uint32_t) +
      kOrders.size() * (2 * sizeof(std::uint32_t) + 4 * 2 * sizeof(std::uint32_t));

  // Most entries of a table that are read to find one n-gram; for tests.
  std::size_t longest_probe() const {
    std::size_t longest = 0;
    for (const Table& table : tables_) longest = std::max(longest, table.longest_probe());
    return longest;
  }

  // For each of `tokens`, how often it occurs, and how many tokens ago last. The look-ups overlap
  // their memory latencies.
  void occurrences(std::span<const Token> tokens,
                   std::pair<std::uint32_t, std::uint32_t>* out) const {
    for (const Token token : tokens) tables_[0].prefetch_slot(tag_of(std::span(&token, 1)));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      out[i].second = tables_[0].last(tag_of(tokens.subspan(i, 1)));
      if (out[i].second != 0) prefetch(&occurrence_[out[i].second - 1]);
    }
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (const std::uint32_t end = out[i].second; end == 0) out[i] = {0, 0};
      else out[i] = {occurrence_[end - 1], static_cast<std::uint32_t>(tokens_.size()) - end};
  }

  // Prefetch the memory that find() reads first.
  void prefetch_for(std::span<const Token> tail) const {
    for (std::size_t i = 0; i < kOrders.size() && kOrders[i] <= tail.size(); ++i)
      tables_[i].prefetch_slot(tag_of(tail.last(kOrders[i])));
  }

  // Find the continuations of suffixes of `tail`: the last tokens of this text and, behind
  // them, a path.
  void find(std::span<const Token> tail, PromptMatches& out) const {
    out.length = 0;
    out.counts = {};
    out.candidates.clear();
    std::array<std::uint32_t, kOrders.size()> ends{};
    for (std::size_t i = 0; i < kOrders.size() && kOrders[i] <= tail.size(); ++i) {
      ends[i] = tables_[i].last(tag_of(tail.last(kOrders[i])));
      if (ends[i] == 0) break;  // nor does a longer suffix occur
      prefetch(&before_[ends[i] - 1]);
      prefetch(&tokens_[ends[i] - 1]);
    }
    for (std::size_t i = kOrders.size(); i-- > 0;) {
      static constexpr std::array<int, kOrders.size()> kShares{0, 1, -1, 2, -1};
      if (ends[i] != 0) walk(i, ends[i], kShares[i], tail, out);
    }
  }

 private:
  static constexpr std::uint32_t kVisited =
      256;  // among others, should a text be made of n-grams with the same tag
  static constexpr std::uint32_t kCompared = 48;  // tokens compared to tell the length of a match
  static constexpr float kOlder = 0.85F;  // weight of an occurrence, as a share of the next one's
  // Entries of a table that an n-gram may have. Where tags are spread evenly, as many in a row are
  // taken in about one of ten thousand texts of 262,144 tokens.
  static constexpr std::size_t kProbes = 128;

  // The tag of an n-gram. Single tokens never share one. Longer n-grams may, so their tokens are
  // compared, too.
  static std::uint32_t tag_of(std::span<const Token> tokens) {
    if (tokens.size() == 1) return (tokens[0] * 0x9E3779B1U) ^ ((tokens[0] * 0x9E3779B1U) >> 15);
    return static_cast<std::uint32_t>(hash_of(tokens, 0x243F6A8885A308D3ULL) >> 32);
  }

  // Where each n-gram of one length was last, as end position + 1.
  struct Table {
    struct Entry {
      std::uint32_t tag = 0, end = 0;  // end 0: free
    };

    std::vector<Entry> entries = std::vector<Entry>(64);
    std::size_t used = 0;

    // Where the n-gram of a tag is, or may be put: a free entry, or the one that was written the
    // longest ago if all that it may have are those of others.
    struct Place {
      std::size_t slot, read;  // and how many entries were read to find it
    };

    Place place(std::uint32_t tag) const {
      const std::size_t mask = entries.size() - 1;
      for (std::size_t read = 0; read < kProbes; ++read)
        if (const Entry& entry = entries[(tag + read) & mask]; entry.end == 0 || entry.tag == tag)
          return {(tag + read) & mask, read + 1};
      std::size_t oldest = tag & mask;
      for (std::size_t read = 1; read < kProbes; ++read)
        if (const std::size_t slot = (tag + read) & mask; entries[slot].end < entries[oldest].end)
          oldest = slot;
      return {oldest, 2 * kProbes};
    }

    std::uint32_t last(std::uint32_t tag) const {
      const Entry& entry = entries[place(tag).slot];
      return entry.tag == tag ? entry.end : 0;
    }
    void prefetch_slot(std::uint32_t tag) const { prefetch(&entries[tag & (entries.size() - 1)]); }

    // Set where an n-gram was last; returns where it was before.
    std::uint32_t swap_last(std::uint32_t tag, std::uint32_t end) {
      Entry& entry = entries[place(tag).slot];
      used += entry.end == 0;
      const Entry before = std::exchange(entry, {tag, end});
      return before.tag == tag ? before.end : 0;
    }

    // Most entries that are read to find one n-gram, of those that are there and of others in their
    // places.
    std::size_t longest_probe() const {
      std::size_t longest = 0;
      for (const Entry& entry : entries)
        if (entry.end != 0)
          for (const std::uint32_t tag : {entry.tag, entry.tag ^ 0x80000000U})
            longest = std::max(longest, place(tag).read);
      return longest;
    }

    // Make room for `count` n-grams: tables are at most half full and double.
    void reserve(std::size_t count) {
      if (2 * count <= entries.size()) return;
      std::vector<Entry> old(std::bit_ceil(2 * count));
      old.swap(entries);
      used = 0;
      for (const Entry& entry : old) {
        if (entry.end == 0) continue;
        Entry& kept = entries[place(entry.tag).slot];
        used += kept.end == 0;
        if (kept.end < entry.end) kept = entry;
      }
    }
  };

  // Add the n-grams of an order that end at the positions from `from` on, in blocks that overlap
  // their memory latencies.
  void append(std::size_t order, std::size_t from) {
    const std::size_t size = kOrders[order];
    Table& table = tables_[order];
    std::array<std::uint32_t, 32> tags;
    for (std::size_t first = std::max(from, size - 1); first < tokens_.size();
         first += tags.size()) {
      const std::size_t count = std::min(tags.size(), tokens_.size() - first);
      for (std::size_t i = 0; i < count; ++i) {
        tags[i] = tag_of(std::span(tokens_).subspan(first + i + 1 - size, size));
        table.prefetch_slot(tags[i]);
      }
      for (std::size_t i = 0; i < count; ++i)
        before_[first + i][order] =
            table.swap_last(tags[i], static_cast<std::uint32_t>(first + i + 1));
    }
  }

  // Read the occurrences of the last tokens of `tail`, the latest first. `end`: the end position +
  // 1 of the latest.
  void walk(std::size_t order, std::uint32_t end, int share, std::span<const Token> tail,
            PromptMatches& out) const {
    const std::uint32_t size = kOrders[order];
    float weight = 1, total = 0;
    std::uint32_t seen = 0;
    for (std::uint32_t visited = 0; end != 0 && seen < kWalk && visited < kVisited;
         end = before_[end - 1][order], ++visited) {
      if (end >= tokens_.size() || tokens_[end] == kNoToken) continue;  // nothing follows
      std::uint32_t length = 0;
      while (length < kCompared && length < end && length < tail.size() &&
             tokens_[end - 1 - length] == tail[tail.size() - 1 - length])
        ++length;
      if (length < size) continue;  // another n-gram with the same tag
      ++seen;
      const Token token = tokens_[end];
      auto candidate =
          std::find_if(out.candidates.begin(), out.candidates.end(),
                       [&](const LookupCandidate& other) { return other.token == token; });
      if (candidate == out.candidates.end()) {
        out.candidates.push_back({token,
                                  length,
                                  static_cast<std::uint32_t>(tokens_.size()) - end,
                                  end >= prompt_ || end < text_,
                                  {}});
        candidate = out.candidates.end() - 1;
      }
      candidate->length = std::max(candidate->length, length);
      out.length = std::max(out.length, length);
      if (share >= 0) candidate->shares[static_cast<std::size_t>(share)] += weight;
      total += weight;
      weight *= kOlder;
    }
    if (share < 0 || seen == 0) return;
    const auto at = static_cast<std::size_t>(share);
    out.counts[at] = seen;
    for (LookupCandidate& candidate : out.candidates) candidate.shares[at] /= total;
  }

  std::vector<Token> tokens_;
  std::vector<std::uint32_t>
      occurrence_;  // of each position: 1 for the first occurrence of its token, 2 for the next
  // For each position and order, the previous occurrence of the n-gram that ends there: its end
  // position + 1 (0: none).
  std::vector<std::array<std::uint32_t, kOrders.size()>> before_;
  std::array<Table, kOrders.size()> tables_;
  std::size_t text_ = 0, prompt_ = 0;  // where the references and the prompt end
};

}  // namespace rest_store
