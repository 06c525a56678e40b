// Prompt lookup (Saxena, Prompt Lookup Decoding, 2023): the tokens that followed earlier
// occurrences of the context's suffixes in the prompt and the output so far, at several suffix
// lengths.
//
// For each of a few lengths, a hash table has the position at which each n-gram of that length
// ended last, and each position links to the occurrence before. So a token is appended, and a
// bounded number of recent occurrences is read, in constant time, whatever the length of the text.
//
// A text may be made so that its n-grams meet in one place of a table. Even there a look-up reads a
// bounded number of entries. N-grams for which there is no place are forgotten, the oldest first.
// So such a text loses drafts of its own session, and costs nobody time.
//
// References, which the output will probably resemble, come before the prompt. After each of them
// is a separator, which no match and no continuation crosses.
#pragma once

#include <bit>
#include <utility>

#include "session/continuations.hpp"

namespace rest_store {

// The lengths of the n-grams, in tokens.
constexpr std::array<std::uint32_t, 5> kOrders{1, 2, 3, 4, 8};

// A token that followed an occurrence.
struct LookupCandidate {
  Token token = 0;
  std::uint32_t length = 0;  // of the longest match that it follows, in tokens
  // Tokens since it last followed a match of the longest order that it follows.
  std::uint32_t age = 0;
  bool written = false;  // whether that was in the output or a reference, not in the prompt
  // After the suffixes of 1, 2 and 4 tokens, its share of the recent occurrences. Recent ones weigh
  // more.
  std::array<float, 3> shares{};
};

// The candidates of prompt lookup for one position.
struct PromptMatches {
  std::uint32_t length = 0;  // of the longest match, in tokens
  // The occurrences of the suffixes of 1, 2 and 4 tokens that were read, at most kWalk.
  std::array<std::uint32_t, 3> counts{};
  std::vector<LookupCandidate> candidates;
};

// Owns the text of one generation. Not thread-safe.
class PromptLookup {
 public:
  // Append a reference. Called before the prompt is appended.
  void add_reference(std::span<const Token> tokens) {
    append(tokens);
    append(std::span(&kNoToken, 1));
    text_ = tokens_.size();
  }

  // End the prompt: tokens that are appended later are the output.
  void end_prompt() { prompt_ = tokens_.size(); }

  // Append tokens to the text. Throws std::bad_alloc, with the text as it was, if there is not
  // enough memory.
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

  // Prompt and output, without references; valid until the next append().
  std::span<const Token> text() const { return std::span(tokens_).subspan(text_); }

  static constexpr std::size_t kWalk = 24;  // the most occurrences of one suffix that are read
  static constexpr std::size_t kMaxCandidates = kWalk * kOrders.size();

  // The most bytes that a token may take. Tables are at most half full, and double when they grow.
  static constexpr std::size_t kTokenMemory =
      4 * sizeof(std::uint32_t) +
      kOrders.size() * (2 * sizeof(std::uint32_t) + 4 * 2 * sizeof(std::uint32_t));

  // The most entries of a table that are read to find one n-gram; for tests.
  std::size_t longest_probe() const {
    std::size_t longest = 0;
    for (const Table& table : tables_) longest = std::max(longest, table.longest_probe());
    return longest;
  }

  // Write for each of `tokens` the number of its occurrences, and of tokens since the last of them;
  // 0 and 0 if there is none. `out` has room for one pair each. The reads of all tokens overlap.
  void occurrences(std::span<const Token> tokens,
                   std::pair<std::uint32_t, std::uint32_t>* out) const {
    for (const Token token : tokens) tables_[0].prefetch_slot(tag_of(std::span(&token, 1)));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      out[i].second = tables_[0].last(tag_of(tokens.subspan(i, 1)));
      if (out[i].second != 0) prefetch(&occurrence_[out[i].second - 1]);
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::uint32_t end = out[i].second;
      if (end == 0) out[i] = {0, 0};
      else out[i] = {occurrence_[end - 1], static_cast<std::uint32_t>(tokens_.size()) - end};
    }
  }

  // Prefetch the memory that find() reads first for this tail.
  void prefetch_for(std::span<const Token> tail) const {
    for (std::size_t i = 0; i < kOrders.size() && kOrders[i] <= tail.size(); ++i)
      tables_[i].prefetch_slot(tag_of(tail.last(kOrders[i])));
  }

  // Find the continuations of the suffixes of `tail`: the last tokens of this text and, after them,
  // those of a path of the draft. `out` is overwritten.
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
  // The most positions that a walk visits, should a text be made of n-grams with the same tag.
  static constexpr std::uint32_t kVisited = 256;
  static constexpr std::uint32_t kCompared = 48;  // the greatest length of a match that is measured
  static constexpr float kOlder = 0.85F;  // weight of an occurrence, as a share of the next one's
  // The entries of a table in which an n-gram may be. Where tags are spread evenly, so many in a
  // row are taken in about one of ten thousand texts of 262,144 tokens.
  static constexpr std::size_t kProbes = 128;

  // The tag of an n-gram. Single tokens never share one. Longer n-grams may, so their tokens are
  // compared, too.
  static std::uint32_t tag_of(std::span<const Token> tokens) {
    if (tokens.size() == 1) return (tokens[0] * 0x9E3779B1U) ^ ((tokens[0] * 0x9E3779B1U) >> 15);
    return static_cast<std::uint32_t>(hash_of(tokens, 0x243F6A8885A308D3ULL) >> 32);
  }

  // By tag, the position at which each n-gram of one length ended last: a hash table with linear
  // probing, in which a tag has kProbes places.
  struct Table {
    struct Entry {
      std::uint32_t tag = 0;
      std::uint32_t end = 0;  // the position + 1; 0: free
    };

    std::vector<Entry> entries = std::vector<Entry>(64);
    std::size_t used = 0;  // entries that are not free

    // The entry of a tag or, if it has none, the one to put it into: a free one, or the one that
    // was written the longest ago if others have all of its places.
    struct Place {
      std::size_t slot;
      std::size_t read;  // entries that were read to find it
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

    // The `end` of a tag; 0: it is not there.
    std::uint32_t last(std::uint32_t tag) const {
      const Entry& entry = entries[place(tag).slot];
      return entry.tag == tag ? entry.end : 0;
    }
    void prefetch_slot(std::uint32_t tag) const { prefetch(&entries[tag & (entries.size() - 1)]); }

    // Set the `end` of a tag. Returns the one before; 0: there was none.
    std::uint32_t swap_last(std::uint32_t tag, std::uint32_t end) {
      Entry& entry = entries[place(tag).slot];
      used += entry.end == 0;
      const Entry before = std::exchange(entry, {tag, end});
      return before.tag == tag ? before.end : 0;
    }

    // The most entries that are read to find one n-gram: one that is there, or another that has the
    // same places.
    std::size_t longest_probe() const {
      std::size_t longest = 0;
      for (const Entry& entry : entries)
        if (entry.end != 0)
          for (const std::uint32_t tag : {entry.tag, entry.tag ^ 0x80000000U})
            longest = std::max(longest, place(tag).read);
      return longest;
    }

    // Make room for `count` n-grams.
    void reserve(std::size_t count) {
      if (2 * count <= entries.size()) return;
      std::vector<Entry> old(std::bit_ceil(2 * count));
      old.swap(entries);
      used = 0;
      for (const Entry& entry : old) {
        if (entry.end == 0) continue;
        Entry& moved = entries[place(entry.tag).slot];
        used += moved.end == 0;
        if (moved.end < entry.end) moved = entry;
      }
    }
  };

  // Add the n-grams of an order that end at the positions from `from` on. They come in blocks, and
  // the reads of a block overlap.
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

  // Read the occurrences of the last tokens of `tail`, the latest first, and add their next tokens
  // to `out`. `order`: index of the number of tokens in kOrders. `end`: the end position + 1 of the
  // latest occurrence. `share`: index of the shares and of the counts that are set; -1: none.
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
  // Of each position: 1 for the first occurrence of its token, 2 for the next, and so on.
  std::vector<std::uint32_t> occurrence_;
  // Of each position and order: the end position + 1 of the previous occurrence of the n-gram that
  // ends there; 0: there is none.
  std::vector<std::array<std::uint32_t, kOrders.size()>> before_;
  std::array<Table, kOrders.size()> tables_;
  std::size_t text_ = 0, prompt_ = 0;  // the ends of the references and of the prompt
};

}  // namespace rest_store
