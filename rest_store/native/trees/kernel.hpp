// The queries of a datastore: its shards, and what a thread needs to answer from them.
#pragma once

#include "trees/tree_cache.hpp"

namespace rest_store {

struct Limits {
  std::uint32_t max_nodes;
  std::uint32_t max_suffix;
  std::uint32_t max_depth;
};

// The draft trees of contexts. Those of `kTogether` contexts, less what is kept, lie together in `block`.
struct Trees {
  static constexpr std::size_t kTogether = 64;

  // A tree lies in `block` from `start` on, or is kept.
  struct Place {
    std::size_t start = 0;
    std::shared_ptr<KeptTree> kept;
  };

  Block block;
  std::vector<Place> places;                       // of each context's tree
  std::vector<std::size_t> ends;                   // in `block`, of the trees of each `kTogether` contexts
  std::vector<std::shared_ptr<KeptTree>> dropped;  // that nobody keeps any longer

  void clear() {
    block.clear();
    places.clear();
    ends.clear();
    dropped.clear();
  }
};

// Thread-safe: shards are read-only, the cache locks itself, scratch memory belongs to the thread.
class Kernel {
 public:
  Kernel(std::vector<ShardView> shards, std::uint32_t vocabulary)
      : shards_(std::move(shards)), vocabulary_(vocabulary), key_tree_(shards_) {}

  std::uint32_t width() const { return shards_[0].width; }

  // `contexts` holds the last tokens of each context, at most max_suffix.
  const std::vector<Match>& match(const std::vector<Suffix>& contexts) {
    return scratch().matcher.longest(shards_, key_tree_, contexts, Matcher::Find::kOccurrences,
                                     [](std::size_t, std::uint32_t) { return false; });
  }

  // Put the draft trees of `contexts` into `trees`, which is empty.
  void draft(std::span<const Suffix> contexts, const Limits& limits, Trees& trees) {
    Scratch& own = scratch();
    trees.places.resize(contexts.size());
    for (std::size_t first = 0; first < contexts.size(); first += Trees::kTogether) {
      const auto some = contexts.subspan(first, std::min(Trees::kTogether, contexts.size() - first));
      const auto places = std::span(trees.places).subspan(first, some.size());
      const auto known = [&](std::size_t i, std::uint32_t length) {
        const std::string_view tokens = tokens_of(some[i], length);
        places[i].kept = cache_.lookup(tokens, limits.max_nodes, limits.max_depth);
        return places[i].kept != nullptr;
      };
      const std::vector<Match>& matches =
          own.matcher.longest(shards_, key_tree_, some, Matcher::Find::kOccurrences, known);
      for (std::size_t i = 0; i < matches.size(); ++i) {
        if (i % kAhead == 0 && matches.size() > 1) ask_for(i, matches, places, limits.max_depth);
        if (places[i].kept) continue;
        if (matches[i].count < TreeCache::kHeavy) {
          places[i].start = trees.block.size();
          draft(matches[i], limits, own, trees.block);
        } else if (!known(i, matches[i].length)) {
          Block block;
          draft(matches[i], limits, own, block);
          places[i].kept = std::make_shared<KeptTree>(std::move(block));
          cache_.insert(tokens_of(some[i], matches[i].length), matches[i].count, limits.max_nodes, limits.max_depth,
                        places[i].kept, trees.dropped);
        }
      }
      trees.ends.push_back(trees.block.size());
    }
    if (own.drafter.holds_excess()) own.drafter = Drafter();
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
    std::vector<Search> searches;
    std::vector<std::uint8_t> decided;
  };

  static constexpr std::size_t kAhead = 8;  // contexts whose light matches are asked for at once

  // Ask memory for what the next trees from `first` on will be made of, if that is little.
  void ask_for(std::size_t first, const std::vector<Match>& matches, std::span<const Trees::Place> places,
               std::uint32_t max_depth) const {
    const RowShape shape(max_depth, width(), vocabulary_);
    for (const bool text : {false, true})
      for (std::size_t i = first; i < std::min(first + kAhead, matches.size()); ++i) {
        const Match& match = matches[i];
        if (places[i].kept) {
          if (text) prefetch(places[i].kept.get());
          continue;
        }
        if (match.count >= TreeCache::kHeavy) continue;
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

  void draft(const Match& match, const Limits& limits, Scratch& own, Block& block) const {
    own.drafter.draft(shards_, match, vocabulary_, limits.max_nodes, limits.max_depth, block);
  }

  // Not inlined: code that knows the object to be the thread's looks up its address at every use.
  [[gnu::noinline]] static Scratch& scratch() {
    thread_local Scratch own;
    return own;
  }

  std::vector<ShardView> shards_;
  std::uint32_t vocabulary_;
  KeyTree key_tree_;
  TreeCache cache_;
};

}  // namespace rest_store
