// Evidence on its way: of a tree of paths, what one datastore knows about each, as bytes and back.
// The message Evidence of the service's definition says how they lie.
#pragma once

#include <string>
#include <string_view>

#include "session/evidence.hpp"

namespace rest_store {

constexpr std::size_t kMaxEvidenceRows = 1024;  // of one answer
constexpr std::size_t kEvidenceHead = 16;       // bytes

// Writes columns of little-endian numbers.
class ColumnWriter {
 public:
  void put(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
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

// One path: the row of its beginning and its last token.
struct PathEnd {
  std::int32_t parent;  // -1: this is the context itself
  Token token;
};

// The bytes of `evidence(row)` for each of `paths`, of which the first is the context itself.
template <class EvidenceOf>
std::string packed_rows(std::span<const PathEnd> paths, std::uint32_t vocabulary, EvidenceOf&& evidence) {
  const std::size_t width = vocabulary <= 65536 ? 2 : 4;
  std::vector<const BackoffLevel*> levels;
  std::size_t continuations = 0;
  for (std::size_t row = 0; row < paths.size(); ++row)
    for (const BackoffLevel& level : evidence(row).levels)
      if (level.length > 0) {
        levels.push_back(&level);
        continuations += level.next.size;
      }
  ColumnWriter out;
  for (const std::size_t number : {paths.size(), levels.size(), continuations, width}) out.put(number, 4);
  for (std::size_t row = 1; row < paths.size(); ++row) out.put(paths[row].token, width);
  for (std::size_t row = 1; row < paths.size(); ++row) out.put(static_cast<std::uint64_t>(paths[row].parent), 2);
  for (std::size_t row = 0; row < paths.size(); ++row) {
    const auto& own = evidence(row).levels;
    out.put(static_cast<std::uint64_t>(
                std::count_if(own.begin(), own.end(), [](const BackoffLevel& r) { return r.length > 0; })),
            1);
  }
  for (const BackoffLevel* level : levels) out.put(level->length, 1);
  for (const BackoffLevel* level : levels) out.put(level->next.probes, 1);
  for (const BackoffLevel* level : levels) out.put(level->next.size, 1);
  for (const BackoffLevel* level : levels) out.put(level->count, 8);
  for (const BackoffLevel* level : levels)
    for (const Continuation& one : level->next) out.put(one.token, width);
  for (const BackoffLevel* level : levels)
    for (const Continuation& one : level->next)
      out.put(static_cast<std::uint64_t>(std::lround(one.share * static_cast<float>(level->next.probes))), 1);
  return out.take();
}

// What was received, found again by path.
class EvidenceRows {
 public:
  bool empty() const { return rows_.empty(); }
  void clear() { rows_.clear(); }
  std::size_t size() const { return rows_.size(); }

  // Take the rows in `bytes`; return null, or what is wrong with them, and then there are none. `vocabulary`: greatest
  // token + 1 that may be in them.
  const char* read(std::string_view bytes, std::uint64_t vocabulary, std::size_t max_rows) {
    const char* fault = parse(bytes, vocabulary, max_rows);
    if (fault != nullptr) clear();
    return fault;
  }

  // What is known after `path`; nothing if it was not read.
  void at(std::span<const Token> path, Evidence& out) const {
    std::int32_t row = 0;
    for (const Token token : path) {
      row = rows_[static_cast<std::size_t>(row)].first_child;
      while (row >= 0 && rows_[static_cast<std::size_t>(row)].token != token)
        row = rows_[static_cast<std::size_t>(row)].next_sibling;
      if (row < 0) return out.clear();
    }
    const Row& found = rows_[static_cast<std::size_t>(row)];
    out.clear();
    std::size_t longer = 0;
    for (std::size_t i = found.first_level; i < found.first_level + found.levels; ++i) {
      const Given& given = levels_[i];
      BackoffLevel& level = out.levels[given.length > kShort ? longer++ : kLevels - given.length];
      level.length = given.length;
      level.count = given.count;
      level.next = given.next;
    }
  }

 private:
  struct Row {
    Token token = 0;
    std::int32_t first_child = -1, next_sibling = -1;
    std::size_t first_level = 0, levels = 0;
  };
  struct Given {
    std::uint32_t length;
    std::uint64_t count;
    Continuations next;
  };

  const char* parse(std::string_view bytes, std::uint64_t vocabulary, std::size_t max_rows) {
    clear();
    levels_.clear();
    if (bytes.size() < kEvidenceHead) return "shorter than its head";
    const Column head(bytes, 4);
    const std::uint64_t rows = head[0], levels = head[1], continuations = head[2], width = head[3];
    if (rows == 0 || rows > max_rows) return "of more rows than were asked for, or none";
    if (levels > rows * kLevels || continuations > levels * kContinuations)
      return "of more parts than it has places for";
    if (width != 2 && width != 4) return "of tokens of a strange width";
    std::size_t from = kEvidenceHead;
    bool whole = true;
    const auto column = [&](std::size_t count, std::size_t item) {
      whole = whole && bytes.size() - from >= count * item;
      const Column found(whole ? bytes.substr(from, count * item) : std::string_view(), item);
      if (whole) from += count * item;
      return found;
    };
    const Column tokens = column(rows - 1, width), parents = column(rows - 1, 2), levels_of = column(rows, 1);
    const Column lengths = column(levels, 1), probes = column(levels, 1), sizes = column(levels, 1);
    const Column counts = column(levels, 8), next = column(continuations, width), weights = column(continuations, 1);
    if (!whole || from != bytes.size()) return "of another size than its head says";
    std::size_t level = 0, continuation = 0;
    rows_.resize(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      rows_[row] = Row();
      if (row > 0) {
        const std::uint64_t token = tokens[row - 1], parent = parents[row - 1];
        if (token >= vocabulary) return "with a token outside the vocabulary";
        if (parent >= row) return "with a row before its parent";
        rows_[row].token = static_cast<Token>(token);
        rows_[row].next_sibling = rows_[parent].first_child;
        rows_[parent].first_child = static_cast<std::int32_t>(row);
      }
      rows_[row].first_level = level;
      rows_[row].levels = levels_of[row];
      if (level + rows_[row].levels > levels) return "with levels that do not add up";
      std::uint64_t last = kLongest + 1;
      for (std::size_t longer = 0; level < rows_[row].first_level + rows_[row].levels; ++level) {
        Given given{static_cast<std::uint32_t>(lengths[level]), counts[level], {}};
        if (given.length == 0 || given.length >= last) return "with suffixes out of order";
        if (given.length > kShort && ++longer > kLevels - kShort) return "with too many long suffixes";
        last = given.length;
        const std::uint64_t size = sizes[level];
        given.next.probes = static_cast<std::uint32_t>(probes[level]);
        given.next.size = static_cast<std::uint32_t>(size);
        if (given.count < given.next.probes || given.next.probes == 0) return "with impossible counts";
        if (size > kContinuations || continuation + size > continuations)
          return "with continuations that do not add up";
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < size; ++i, ++continuation) {
          if (next[continuation] >= vocabulary) return "with a token outside the vocabulary";
          if (weights[continuation] == 0) return "with impossible counts";
          sum += weights[continuation];
          given.next.top[i] = {
              static_cast<Token>(next[continuation]),
              static_cast<float>(static_cast<double>(weights[continuation]) / static_cast<double>(given.next.probes))};
        }
        if (sum > given.next.probes) return "with impossible counts";
        levels_.push_back(given);
      }
    }
    return level == levels && continuation == continuations ? nullptr : "with parts that belong to no row";
  }

  std::vector<Row> rows_;
  std::vector<Given> levels_;
};

}  // namespace rest_store
