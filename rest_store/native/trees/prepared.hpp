// Draft trees of matches with many occurrences, made when the datastore was built (FORMAT.md, section 8): a few hundred
// bytes to read where a draft would look at thousands of suffixes.
#pragma once

#include <array>
#include <string_view>

#include "search/shard_view.hpp"
#include "trees/packed_tree.hpp"

namespace rest_store {

// The payload of the file of prepared drafts, eight readable bytes behind it, and the fields of its header.
struct PreparedView {
  const std::uint8_t* payload = nullptr;
  std::uint64_t size = 0;
  std::uint64_t draft_count = 0;
  std::uint32_t bucket_bits = 0;
  std::uint32_t max_nodes = 0;  // that a draft was cut to
  std::uint32_t max_depth = 0;
  std::uint32_t width = 0;
  std::uint32_t vocabulary = 0;
};

// Reads within bounds whatever the file holds: a draft that is none counts as absent. Thread-safe.
class PreparedDrafts {
 public:
  PreparedDrafts() = default;  // none are prepared

  // `most` occurrences are all that any sequence can have.
  PreparedDrafts(const PreparedView& view, std::uint64_t most)
      : view_(view),
        most_(most),
        starts_(8 * (view.draft_count + 1)),
        drafts_(starts_ + 4 * ((std::uint64_t{1} << view.bucket_bits) + 1)) {}

  // Append to `block` the tree of the match of `tokens`, as a tokens file stores them, if it is prepared and all that
  // is asked for; return whether. Uses `nodes`.
  bool append(std::string_view tokens, std::uint32_t max_nodes, std::uint32_t max_depth, Nodes& nodes,
              Block& block) const {
    if (view_.draft_count == 0 || max_depth > view_.max_depth) return false;
    const std::uint64_t bucket = hash_of(tokens) >> (64 - view_.bucket_bits);
    const std::uint64_t end = std::min<std::uint64_t>(start(bucket + 1), view_.draft_count);
    for (std::uint64_t place = start(bucket); place < end; ++place) {
      const Draft draft = at(place);
      if (draft.tokens != tokens) continue;
      if (!read(draft, max_nodes, max_depth, nodes)) return false;
      append_tree(block, static_cast<std::uint32_t>(tokens.size() / view_.width), draft.count, nodes);
      return true;
    }
    return false;
  }

 private:
  // A draft as it lies in the file; without tokens, it is none.
  struct Draft {
    std::string_view tokens;
    std::uint64_t count = 0;
    std::uint32_t size = 0;  // nodes
    const std::uint8_t* nodes = nullptr;
  };

  std::uint64_t hash_of(std::string_view tokens) const {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
    std::uint64_t hash = 0;
    for (std::size_t at = 0; at < tokens.size(); at += view_.width) {
      hash = (hash ^ token(reinterpret_cast<const std::uint8_t*>(tokens.data()) + at)) * kFactor;
      hash ^= hash >> 32;
    }
    return hash;
  }

  Token token(const std::uint8_t* at) const {
    const Token two = static_cast<Token>(at[0]) << 8 | at[1];
    return view_.width == 2 ? two : two << 8 | at[2];
  }

  // The place of the first draft of a bucket.
  std::uint64_t start(std::uint64_t bucket) const {
    return load_little(view_.payload + starts_ + 4 * bucket) & 0xFFFFFFFFU;
  }

  std::size_t node_size() const { return view_.width + 6; }

  Draft at(std::uint64_t place) const {
    const std::uint8_t* offset = view_.payload + 8 * place;
    const std::uint64_t begin = load_little(offset), end = load_little(offset + 8);
    if (end > view_.size - drafts_ || begin > end || end - begin < 10) return {};
    const std::uint8_t* from = view_.payload + drafts_ + begin;
    const std::size_t length = std::size_t{from[0]} * view_.width;
    if (end - begin != 10 + length + from[1] * node_size()) return {};
    return {{reinterpret_cast<const char*>(from) + 10, length}, load_little(from + 2), from[1], from + 10 + length};
  }

  // Put the first `max_nodes` nodes of at most `max_depth` tokens into `nodes`; false if there are too few of them in
  // the file, or what is there is no tree.
  bool read(const Draft& draft, std::uint32_t max_nodes, std::uint32_t max_depth, Nodes& nodes) const {
    std::array<std::int32_t, 256> depths, places;  // of the file's nodes; place in `nodes`
    std::uint64_t above = draft.count;
    if (above == 0 || above > most_) return false;
    nodes.clear(std::min(draft.size, max_nodes));
    for (std::uint32_t i = 0; i < draft.size && nodes.size < max_nodes; ++i) {
      const std::uint8_t* at = draft.nodes + i * node_size();
      const Token node_token = token(at);
      const std::uint32_t parent = at[view_.width];  // and one more; 0: a child of the context
      const std::uint64_t count = load_little(at + view_.width + 1) & ((std::uint64_t{1} << 40) - 1);
      if (parent > i || node_token >= view_.vocabulary || count == 0 || count > above) return false;
      above = count;
      depths[i] = parent == 0 ? 1 : depths[parent - 1] + 1;
      if (depths[i] > static_cast<std::int32_t>(max_depth)) continue;
      places[i] = static_cast<std::int32_t>(nodes.size);
      nodes.add(static_cast<std::int64_t>(count), static_cast<std::int32_t>(node_token),
                parent == 0 ? -1 : places[parent - 1], depths[i]);
    }
    return nodes.size == max_nodes || draft.size < view_.max_nodes;
  }

  PreparedView view_;
  std::uint64_t most_ = 0;
  std::uint64_t starts_ = 0, drafts_ = 0;  // where in the payload the buckets' starts, and the drafts, begin
};

}  // namespace rest_store
