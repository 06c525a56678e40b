// The queries of a datastore: its shards, and what a thread needs to answer from them.
#pragma once

#include "memo.hpp"
#include "prepared.hpp"

namespace rest_store {

struct Limits {
  std::uint32_t max_nodes;
  std::uint32_t max_suffix;
  std::uint32_t max_depth;
};

// Draft trees, one after the other.
struct Trees {
  Block block;
  std::vector<std::size_t> starts;
};

// Thread-safe: shards are read-only, the memo locks itself, scratch memory belongs to the thread.
class Kernel {
 public:
  Kernel(std::vector<ShardView> shards, std::uint32_t vocabulary, const PreparedView& prepared)
      : shards_(std::move(shards)), vocabulary_(vocabulary), directory_(shards_) {
    std::uint64_t entries = 0;
    for (const ShardView& shard : shards_) entries += shard.entry_count;
    if (prepared.draft_count > 0) prepared_ = PreparedDrafts(prepared, entries);
  }

  std::uint32_t vocabulary() const { return vocabulary_; }
  std::uint32_t width() const { return shards_[0].width; }

  // `contexts` holds the last tokens of each context, at most max_suffix.
  const std::vector<Match>& match(const std::vector<Suffix>& contexts) {
    return scratch().matcher.longest(shards_, directory_, contexts, Matcher::Find::kOccurrences,
                                     [](std::size_t, std::uint32_t) { return false; });
  }

  // The draft trees of `contexts`; valid until the thread drafts again.
  const Trees& draft(std::span<const Suffix> contexts, const Limits& limits) {
    Scratch& own = scratch();
    own.trees.block.clear();
    own.trees.starts.clear();
    for (std::size_t first = 0; first < contexts.size(); first += kTogether) {
      const auto some = contexts.subspan(first, std::min(kTogether, contexts.size() - first));
      own.known.assign(some.size(), nullptr);
      const auto remembered = [&](std::size_t i, std::uint32_t length) {
        const std::string_view tokens = tokens_of(some[i], length);
        own.known[i] = prepared_.find(tokens, limits.max_nodes, limits.max_depth, own.nodes);
        if (own.known[i] == nullptr) own.known[i] = memo_.find(tokens, limits.max_nodes, limits.max_depth);
        return own.known[i] != nullptr;
      };
      const std::vector<Match>& matches =
          own.matcher.longest(shards_, directory_, some, Matcher::Find::kOccurrences, remembered);
      for (std::size_t i = 0; i < matches.size(); ++i) {
        if (i % kAhead == 0 && matches.size() > 1) ask_for(i, matches, own.known, limits.max_depth);
        own.trees.starts.push_back(own.trees.block.size());
        const bool heavy = own.known[i] == nullptr && matches[i].count >= Memo::kHeavy;
        if (own.known[i] != nullptr || (heavy && remembered(i, matches[i].length)))
          own.trees.block.insert(own.trees.block.end(), own.known[i]->begin(), own.known[i]->end());
        else append(matches[i], some[i], limits, own);
      }
    }
    own.known.clear();
    if (own.drafter.holds_excess()) own.drafter = Drafter();
    return own.trees;
  }

  // Occurrences of a token sequence.
  std::uint64_t count(const Suffix& tokens) const {
    Scratch& own = scratch();
    own.searches.clear();
    for (const ShardView& shard : shards_)
      own.searches.emplace_back(shard, tokens.last(tokens.length), tokens.length * tokens.width);
    locate(own.searches, 1, own.decided);
    if (!own.decided[0]) return 0;
    std::uint64_t total = 0;
    for (const Search& search : own.searches) {
      Boundary pair[2];
      interval_boundaries(search, pair);
      find_boundaries(pair);
      total += std::max(pair[0].low, pair[1].low) - pair[0].low;
    }
    return total;
  }

 private:
  struct Scratch {
    Matcher matcher;
    Drafter drafter;
    Trees trees;
    Nodes nodes;
    std::vector<std::shared_ptr<const Block>> known;  // answers prepared or remembered
    std::vector<Search> searches;
    std::vector<std::uint8_t> decided;
  };

  static constexpr std::size_t kTogether = 256;  // contexts whose searches share rounds, at most
  static constexpr std::size_t kAhead = 16;      // contexts whose answers or light matches are asked for at once

  // Ask memory for what the next trees from `first` on will be made of, if that is little.
  void ask_for(std::size_t first, const std::vector<Match>& matches,
               const std::vector<std::shared_ptr<const Block>>& known, std::uint32_t max_depth) const {
    const RowShape shape(max_depth, width(), vocabulary_);
    for (const bool text : {false, true})
      for (std::size_t i = first; i < std::min(first + kAhead, matches.size()); ++i) {
        const Match& match = matches[i];
        if (known[i] != nullptr) {
          if (!text) prefetch(known[i].get());
          else
            for (std::size_t at = 0; at < known[i]->size(); at += 64) prefetch(known[i]->data() + at);
          continue;
        }
        if (match.count >= Memo::kHeavy) continue;
        if (!match.occurrences.empty()) {
          if (text)
            for (const Occurrence& one : match.occurrences)
              shape.ask(shards_[one.shard].suffix(one.position + match.skip));
          continue;
        }
        for (std::size_t s = 0; s < shards_.size(); ++s)
          for (Rank rank = match.intervals[s].begin; rank < match.intervals[s].end; ++rank)
            if (text) shape.ask(shards_[s].suffix(shards_[s].position(rank) + match.skip));
            else prefetch(shards_[s].entry_address(rank));
      }
  }

  static std::string_view tokens_of(const Suffix& suffix, std::uint32_t length) {
    return {reinterpret_cast<const char*>(suffix.last(length)), std::size_t{length} * suffix.width};
  }

  // Append the tree of `match`, the last tokens of `suffix`.
  void append(const Match& match, const Suffix& suffix, const Limits& limits, Scratch& own) {
    Block& block = own.trees.block;
    const auto start = static_cast<std::ptrdiff_t>(block.size());
    append_tree(block, match.length, match.count,
                own.drafter.draft(shards_, match, vocabulary_, limits.max_nodes, limits.max_depth));
    if (match.count >= Memo::kHeavy)
      memo_.keep(tokens_of(suffix, match.length), match.count, limits.max_nodes, limits.max_depth,
                 std::make_shared<const Block>(block.begin() + start, block.end()));
  }

  // Not inlined: code that knows the object to be the thread's looks up its address at every use.
  [[gnu::noinline]] static Scratch& scratch() {
    thread_local Scratch own;
    return own;
  }

  std::vector<ShardView> shards_;
  std::uint32_t vocabulary_;
  KeyDirectory directory_;
  PreparedDrafts prepared_;
  Memo memo_;
};

}  // namespace rest_store
