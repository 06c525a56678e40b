// Evidence as bytes: what one datastore knows after each path of a tree, written for a session in another process, and
// read back. The message Evidence in `proto/rest_store/v1/datastore.proto` defines the layout.
#pragma once

#include <string>
#include <string_view>

#include "session/evidence.hpp"

namespace rest_store {

constexpr std::size_t kEvidenceHead = 16;  // bytes

// Writes columns of little-endian numbers, `size` bytes in all.
class ColumnWriter {
 public:
  explicit ColumnWriter(std::size_t size) : out_(size, '\0') {}
  void put(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) out_[place_++] = static_cast<char>(value >> (8 * i));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
  std::size_t place_ = 0;
};

// Reads a column of little-endian numbers.
class Column {
 public:
  Column(std::string_view bytes, std::size_t width) : bytes_(bytes), width_(width) {}
  std::uint64_t operator[](std::size_t place) const {
    std::uint64_t value = 0;
    for (std::size_t i = width_; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes_[place * width_ + i]);
    return value;
  }

 private:
  std::string_view bytes_;
  std::size_t width_;
};

// One path: the row of all but its last token, and that token.
struct PathEnd {
  std::int32_t parent;  // -1: this is the context itself
  Token token;
};

// The bytes of `evidence(row)` for each of `paths`, of which the first is the context itself.
template <class EvidenceOf>
std::string packed_rows(std::span<const PathEnd> paths, std::uint32_t vocabulary, EvidenceOf&& evidence) {
  const std::size_t width = vocabulary <= 65536 ? 2 : 4;
  std::vector<const BackoffLevel*> levels;
  std::vector<std::size_t> levels_of;
  std::size_t continuations = 0;
  for (std::size_t row = 0; row < paths.size(); ++row) {
    const std::size_t before = levels.size();
    for (const BackoffLevel& level : evidence(row).levels)
      if (level.length > 0) {
        levels.push_back(&level);
        continuations += level.next.size;
      }
    levels_of.push_back(levels.size() - before);
  }
  ColumnWriter out(kEvidenceHead + (paths.size() - 1) * (width + 2) + paths.size() + levels.size() * 11 +
                   continuations * (width + 1));
  for (const std::size_t number : {paths.size(), levels.size(), continuations, width}) out.put(number, 4);
  for (std::size_t row = 1; row < paths.size(); ++row) out.put(paths[row].token, width);
  for (std::size_t row = 1; row < paths.size(); ++row) out.put(static_cast<std::uint64_t>(paths[row].parent), 2);
  for (const std::size_t count : levels_of) out.put(count, 1);
  for (const BackoffLevel* level : levels) out.put(level->length, 1);
  for (const BackoffLevel* level : levels) out.put(level->next.probes, 1);
  for (const BackoffLevel* level : levels) out.put(level->next.size, 1);
  for (const BackoffLevel* level : levels) out.put(level->count, 8);
  for (const BackoffLevel* level : levels)
    for (const Continuation& next : level->next) out.put(next.token, width);
  for (const BackoffLevel* level : levels)
    for (const Continuation& next : level->next)
      out.put(static_cast<std::uint64_t>(next.share * static_cast<float>(level->next.probes) + 0.5F), 1);
  return out.take();
}

// Rows that were received, looked up by path.
class EvidenceRows {
 public:
  bool empty() const { return rows_.empty(); }
  void clear() { rows_.clear(); }

  // Read `bytes`; return null, or what is wrong with them, and then there are no rows. Tokens are less than
  // `vocabulary`.
  const char* read(std::string_view bytes, std::uint64_t vocabulary, std::size_t max_rows) {
    const char* fault = parse(bytes, vocabulary, max_rows);
    if (fault != nullptr) clear();
    return fault;
  }

  // Replace the rows by the sum of `parts`, at least one, each from a part of one datastore: the paths of all of them,
  // and after each path the sum of their evidence.
  void combine(std::span<const EvidenceRows> parts) {
    rows_.assign(1, Row());
    std::vector<std::vector<const Evidence*>> evidence(1);  // for each row, the evidence of the parts that have it
    std::vector<std::size_t> place_of;
    for (const EvidenceRows& part : parts) {
      place_of.assign(part.rows_.size(), 0);
      for (std::size_t i = 0; i < part.rows_.size(); ++i) {
        const Row& row = part.rows_[i];
        if (i > 0) place_of[i] = child(place_of[row.parent], row.token);
        if (place_of[i] == evidence.size()) evidence.emplace_back();
        evidence[place_of[i]].push_back(&row.evidence);
      }
    }
    TokenWeights weights;
    for (std::size_t i = 0; i < rows_.size(); ++i) sum(evidence[i], weights, rows_[i].evidence);
  }

  // What is known after `path`. Returns whether it has a row.
  bool after(std::span<const Token> path, Evidence& out) const {
    std::size_t place = 0;
    for (const Token token : path) {
      std::int32_t child = rows_[place].first_child;
      while (child >= 0 && rows_[static_cast<std::size_t>(child)].token != token)
        child = rows_[static_cast<std::size_t>(child)].next_sibling;
      if (child < 0) {
        out.clear();
        return false;
      }
      place = static_cast<std::size_t>(child);
    }
    out = rows_[place].evidence;
    return true;
  }

 private:
  struct Row {
    Token token = 0;
    std::uint32_t parent = 0;
    std::int32_t first_child = -1, next_sibling = -1;
    Evidence evidence;  // without intervals
  };

  // The child of row `parent` by `token`; a new row if there is none.
  std::size_t child(std::size_t parent, Token token) {
    std::int32_t place = rows_[parent].first_child;
    while (place >= 0 && rows_[static_cast<std::size_t>(place)].token != token)
      place = rows_[static_cast<std::size_t>(place)].next_sibling;
    if (place >= 0) return static_cast<std::size_t>(place);
    Row& row = rows_.emplace_back();
    row.token = token;
    row.parent = static_cast<std::uint32_t>(parent);
    row.next_sibling = std::exchange(rows_[parent].first_child, static_cast<std::int32_t>(rows_.size() - 1));
    return rows_.size() - 1;
  }

  // The sum of what several parts know after one path. Its long suffixes are those of the part with the longest match:
  // no other part has an occurrence of that. If a part has not read one of these suffixes, its next longer one stands
  // in, whose occurrences are a subset.
  static void sum(std::span<const Evidence* const> parts, TokenWeights& weights, Evidence& out) {
    if (parts.size() == 1) {
      out = *parts[0];
      return;
    }
    const Evidence* longest = parts[0];
    for (const Evidence* part : parts)
      if (part->levels[0].length > longest->levels[0].length) longest = part;
    for (std::size_t i = 0; i < kLevels; ++i) {
      const auto length = i < kLongLevels ? longest->levels[i].length : static_cast<std::uint32_t>(kLevels - i);
      BackoffLevel& level = out.levels[i];
      level.clear();
      if (length == 0) continue;
      weights.clear();
      for (const Evidence* part : parts) {
        const BackoffLevel* read = nullptr;
        for (const BackoffLevel& of_part : part->levels)
          if (of_part.length >= length) read = &of_part;
        if (read == nullptr) continue;
        level.count += read->count;
        for (const Continuation& next : read->next)
          weights.add(next.token, static_cast<double>(next.share) * static_cast<double>(read->count));
      }
      if (level.count == 0) continue;
      level.length = length;
      weights.heaviest(static_cast<double>(level.count), level.next);
    }
  }

  const char* parse(std::string_view bytes, std::uint64_t vocabulary, std::size_t max_rows) {
    clear();
    if (bytes.size() < kEvidenceHead) return "shorter than its head";
    const Column head(bytes, 4);
    const std::uint64_t rows = head[0], suffixes = head[1], continuations = head[2], width = head[3];
    if (rows == 0 || rows > max_rows) return "of more rows than requested, or of 0";
    if (suffixes > rows * kLevels || continuations > suffixes * kContinuations)
      return "of more parts than it has places for";
    if (width != 2 && width != 4) return "of tokens of an unknown width";
    std::size_t from = kEvidenceHead;
    bool whole = true;
    const auto column = [&](std::size_t count, std::size_t item) {
      whole = whole && bytes.size() - from >= count * item;
      const Column out(whole ? bytes.substr(from, count * item) : std::string_view(), item);
      if (whole) from += count * item;
      return out;
    };
    const Column tokens = column(rows - 1, width), parents = column(rows - 1, 2), level_counts = column(rows, 1);
    const Column lengths = column(suffixes, 1), probes = column(suffixes, 1), sizes = column(suffixes, 1);
    const Column counts = column(suffixes, 8), next = column(continuations, width), weights = column(continuations, 1);
    if (!whole || from != bytes.size()) return "of another size than its head says";
    std::size_t suffix = 0, continuation = 0;
    rows_.resize(rows);
    for (std::size_t place = 0; place < rows; ++place) {
      Row& row = rows_[place];
      if (place > 0) {
        const std::uint64_t token = tokens[place - 1], parent = parents[place - 1];
        if (token >= vocabulary) return "with a token outside the vocabulary";
        if (parent >= place) return "with a row before its parent";
        row.token = static_cast<Token>(token);
        row.parent = static_cast<std::uint32_t>(parent);
        row.next_sibling = std::exchange(rows_[parent].first_child, static_cast<std::int32_t>(place));
      }
      const std::size_t end = suffix + level_counts[place];
      if (end > suffixes) return "with suffixes that do not add up";
      std::uint64_t last = kMaxSuffix + 1;
      for (std::size_t longer = 0; suffix < end; ++suffix) {
        const auto length = static_cast<std::uint32_t>(lengths[suffix]);
        if (length == 0 || length >= last) return "with suffixes out of order";
        if (length > kShort && longer == kLongLevels) return "with too many long suffixes";
        BackoffLevel& level = row.evidence.levels[length > kShort ? longer++ : kLevels - length];
        level.length = length;
        level.count = counts[suffix];
        last = length;
        const std::uint64_t size = sizes[suffix];
        level.next.probes = static_cast<std::uint32_t>(probes[suffix]);
        level.next.size = static_cast<std::uint32_t>(size);
        if (level.count < level.next.probes || level.next.probes == 0) return "with impossible counts";
        if (size > kContinuations || continuation + size > continuations)
          return "with continuations that do not add up";
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < size; ++i, ++continuation) {
          if (next[continuation] >= vocabulary) return "with a token outside the vocabulary";
          if (weights[continuation] == 0) return "with impossible counts";
          sum += weights[continuation];
          const double share = static_cast<double>(weights[continuation]) / static_cast<double>(level.next.probes);
          level.next.top[i] = {static_cast<Token>(next[continuation]), static_cast<float>(share)};
        }
        if (sum > level.next.probes) return "with impossible counts";
      }
    }
    return suffix == suffixes && continuation == continuations ? nullptr : "with bytes left over";
  }

  std::vector<Row> rows_;
};

}  // namespace rest_store
