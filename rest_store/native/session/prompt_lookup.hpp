// Prompt lookup (Saxena, Prompt Lookup Decoding, 2023): the tokens that followed earlier occurrences of the context's
// suffixes in the prompt and the output so far, at several suffix lengths.
//
// For each of a few lengths, a hash table holds where each n-gram of that length ended last, and each position links to
// the occurrence before. Appending a token and reading a bounded number of recent occurrences take constant time,
// whatever the length of the text.
#pragma once

#include <bit>
#include <utility>

#include "session/continuations.hpp"

namespace rest_store {

constexpr std::array<std::uint32_t, 5> kOrders{1, 2, 3, 4, 8};

// A token that followed an occurrence.
struct LookupCandidate {
  Token token = 0;
  std::uint32_t length = 0;       // of the longest match that it follows, in tokens
  std::uint32_t age = 0;          // tokens since it last followed a match of the longest order that it follows
  bool written = false;           // whether that was in the output, not the prompt
  std::array<float, 3> shares{};  // of recent occurrences of the suffixes of 1, 2 and 4 tokens, recent ones weigh more
};

struct PromptMatches {
  std::uint32_t length = 0;               // of the longest match, in tokens
  std::array<std::uint32_t, 3> counts{};  // occurrences seen of the suffixes of 1, 2 and 4 tokens, bounded
  std::vector<LookupCandidate> candidates;
};

class PromptLookup {
 public:
  // The tokens so far are the prompt; the output follows.
  void end_prompt() { prompt_ = tokens_.size(); }

  void append(std::span<const Token> tokens) {
    const std::size_t from = tokens_.size();
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    for (std::size_t i = 0; i < kOrders.size(); ++i) orders_[i].append(tokens_, from, kOrders[i]);
    for (std::size_t i = from; i < tokens_.size(); ++i) {
      const std::uint32_t before = orders_[0].before[i];
      occurrence_.push_back(before == 0 ? 1 : occurrence_[before - 1] + 1);
    }
  }

  const std::vector<Token>& tokens() const { return tokens_; }

  // Most bytes that a token may take; tables are at most half full and double.
  static constexpr std::size_t kTokenMemory =
      4 * sizeof(std::uint32_t) + kOrders.size() * (2 * sizeof(std::uint32_t) + 4 * 2 * sizeof(std::uint32_t));

  // How often `token` occurs, and how many tokens ago last.
  std::pair<std::uint32_t, std::uint32_t> occurrences(Token token) const {
    const std::uint32_t end = orders_[0].last(tag_of(std::span(&token, 1)));
    if (end == 0) return {0, 0};
    return {occurrence_[end - 1], static_cast<std::uint32_t>(tokens_.size()) - end};
  }

  // Find what follows occurrences of suffixes of `tail`: the last tokens of this text and, behind them, a path.
  void find(std::span<const Token> tail, PromptMatches& out) const {
    out.length = 0;
    out.counts = {};
    out.candidates.clear();
    for (std::size_t i = kOrders.size(); i-- > 0;) {
      if (kOrders[i] > tail.size()) continue;
      static constexpr std::array<int, kOrders.size()> kShares{0, 1, -1, 2, -1};
      walk(i, kShares[i], tail, out);
    }
  }

 private:
  static constexpr std::uint32_t kWalk = 24;      // occurrences seen of one suffix
  static constexpr std::uint32_t kVisited = 256;  // among others, should a text be made of n-grams with the same tag
  static constexpr std::uint32_t kCompared = 48;  // tokens compared to tell the length of a match

  // Of an n-gram. Different tokens have different tags; for longer n-grams, whoever reads them compares the tokens.
  static std::uint32_t tag_of(std::span<const Token> tokens) {
    if (tokens.size() == 1) return (tokens[0] * 0x9E3779B1U) ^ ((tokens[0] * 0x9E3779B1U) >> 15);
    return static_cast<std::uint32_t>(hash_of(tokens, 0x243F6A8885A308D3ULL) >> 32);
  }

  // One suffix length: where each n-gram was last, as end position + 1, and where each was before (0: nowhere).
  struct Order {
    struct Entry {
      std::uint32_t tag = 0, end = 0;  // end 0: free
    };

    std::vector<std::uint32_t> before;
    std::vector<Entry> table = std::vector<Entry>(64);
    std::size_t used = 0;

    std::size_t slot(std::uint32_t tag) const {
      std::size_t place = tag & (table.size() - 1);
      while (table[place].end != 0 && table[place].tag != tag) place = (place + 1) & (table.size() - 1);
      return place;
    }

    std::uint32_t last(std::uint32_t tag) const { return table[slot(tag)].end; }

    // Add the n-grams that end at the positions of `text` from `from` on; they wait for memory together.
    void append(std::span<const Token> text, std::size_t from, std::size_t size) {
      reserve(used + text.size() - from);
      before.resize(text.size());
      std::array<std::uint32_t, 32> tags;
      for (std::size_t first = std::max(from, size - 1); first < text.size(); first += tags.size()) {
        const std::size_t count = std::min(tags.size(), text.size() - first);
        for (std::size_t i = 0; i < count; ++i) {
          tags[i] = tag_of(text.subspan(first + i + 1 - size, size));
          prefetch(&table[tags[i] & (table.size() - 1)]);
        }
        for (std::size_t i = 0; i < count; ++i) {
          const auto end = static_cast<std::uint32_t>(first + i + 1);
          Entry& entry = table[slot(tags[i])];
          used += entry.end == 0;
          before[end - 1] = std::exchange(entry, {tags[i], end}).end;
        }
      }
    }

    // Make room for `count` n-grams: tables are at most half full and double.
    void reserve(std::size_t count) {
      if (2 * count <= table.size()) return;
      std::vector<Entry> old(std::bit_ceil(2 * count));
      old.swap(table);
      for (const Entry& entry : old)
        if (entry.end != 0) table[slot(entry.tag)] = entry;
    }
  };

  void walk(std::size_t order, int share, std::span<const Token> tail, PromptMatches& out) const {
    const std::uint32_t size = kOrders[order];
    const Order& links = orders_[order];
    float weight = 1, total = 0;
    std::uint32_t seen = 0;
    std::uint32_t visited = 0;
    for (std::uint32_t end = links.last(tag_of(tail.last(size))); end != 0 && seen < kWalk && visited < kVisited;
         end = links.before[end - 1], ++visited) {
      if (end >= tokens_.size()) continue;  // nothing follows yet
      std::uint32_t length = 0;
      while (length < kCompared && length < end && length < tail.size() &&
             tokens_[end - 1 - length] == tail[tail.size() - 1 - length])
        ++length;
      if (length < size) continue;  // another n-gram with the same tag
      ++seen;
      const Token token = tokens_[end];
      auto candidate = std::find_if(out.candidates.begin(), out.candidates.end(),
                                    [&](const LookupCandidate& other) { return other.token == token; });
      if (candidate == out.candidates.end()) {
        out.candidates.push_back({token, length, static_cast<std::uint32_t>(tokens_.size()) - end, end >= prompt_, {}});
        candidate = out.candidates.end() - 1;
      }
      candidate->length = std::max(candidate->length, length);
      out.length = std::max(out.length, length);
      if (share >= 0) candidate->shares[static_cast<std::size_t>(share)] += weight;
      total += weight;
      weight *= 0.85F;
    }
    if (share < 0 || seen == 0) return;
    const auto at = static_cast<std::size_t>(share);
    out.counts[at] = seen;
    for (LookupCandidate& candidate : out.candidates) candidate.shares[at] /= total;
  }

  std::vector<Token> tokens_;
  std::vector<std::uint32_t> occurrence_;  // of each position: 1 for the first occurrence of its token, 2 for the next
  std::array<Order, kOrders.size()> orders_;
  std::size_t prompt_ = 0;
};

}  // namespace rest_store
