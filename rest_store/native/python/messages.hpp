// The messages of proto/rest_store/v1/datastore.proto that a service meets most, in their plain shapes, read and
// written without protobuf. What is not plain is left to protobuf, which knows every shape and refuses what is none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace rest_store {

// Reads the fields of a message, one after the other; never beyond its end.
class FieldReader {
 public:
  enum Wire : std::uint32_t { kVarint = 0, kLength = 2 };

  explicit FieldReader(std::string_view data) : at_(data.data()), end_(data.data() + data.size()) {}

  bool at_end() const { return at_ == end_; }

  // False: no number of at most 64 bits is here.
  bool varint(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && at_ != end_; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(*at_++);
      if (shift == 63 && byte > 1) return false;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // False: fewer bytes follow than their length says.
  bool bytes(std::string_view& value) {
    std::uint64_t size = 0;
    if (!varint(size) || size > static_cast<std::uint64_t>(end_ - at_)) return false;
    value = {at_, static_cast<std::size_t>(size)};
    at_ += size;
    return true;
  }

 private:
  const char* at_;
  const char* end_;
};

// The last tokens of a context.
class LastTokens {
 public:
  static constexpr std::size_t kKept = 64;

  // Takes field `tokens`, packed or one by one; false: not 32-bit numbers.
  bool take(FieldReader& reader, std::uint64_t wire) {
    if (wire == FieldReader::kVarint) return take_one(reader);
    std::string_view packed;
    if (wire != FieldReader::kLength || !reader.bytes(packed)) return false;
    FieldReader inner(packed);
    while (!inner.at_end())
      if (!take_one(inner)) return false;
    return true;
  }

  std::size_t size() const { return std::min(seen_, kKept); }

  std::uint32_t operator[](std::size_t place) const { return kept_[(seen_ - size() + place) % kKept]; }

 private:
  bool take_one(FieldReader& reader) {
    std::uint64_t token = 0;
    if (!reader.varint(token) || token > UINT32_MAX) return false;
    kept_[seen_++ % kKept] = static_cast<std::uint32_t>(token);
    return true;
  }

  std::array<std::uint32_t, kKept> kept_;
  std::size_t seen_ = 0;
};

// A DraftStreamRequest of tokens and a sequence number, and nothing else.
struct PlainStep {
  LastTokens tokens;
  std::uint64_t sequence = 0;
};

inline std::optional<PlainStep> plain_step(std::string_view data) {
  PlainStep step;
  for (FieldReader reader(data); !reader.at_end();) {
    std::uint64_t tag = 0;
    if (!reader.varint(tag)) return std::nullopt;
    switch (tag >> 3) {
      case 3:
        if (!step.tokens.take(reader, tag & 7)) return std::nullopt;
        break;
      case 5:
        if ((tag & 7) != FieldReader::kVarint || !reader.varint(step.sequence)) return std::nullopt;
        break;
      default:
        return std::nullopt;
    }
  }
  return step;
}

// A DraftRequest of one context without proposals; `head` is what comes before it: the selection and the limits.
struct PlainDraft {
  LastTokens tokens;
  std::string_view head;
};

inline std::optional<PlainDraft> plain_draft(std::string_view data) {
  PlainDraft draft;
  FieldReader reader(data);
  std::uint64_t tag = 0, previous = 7;  // fields 1 to 3, each at most once and in this order
  std::string_view field;
  std::size_t start = 0;
  for (; !reader.at_end(); previous = tag) {
    if (!reader.varint(tag) || (tag & 7) != FieldReader::kLength || tag <= previous || tag >> 3 > 3 ||
        !reader.bytes(field))
      return std::nullopt;
    if (tag >> 3 < 3) start = static_cast<std::size_t>(field.data() - data.data()) + field.size();
  }
  if (tag >> 3 != 3) return std::nullopt;
  draft.head = data.substr(0, start);
  for (FieldReader context(field); !context.at_end();)
    if (!context.varint(tag) || tag >> 3 != 1 || !draft.tokens.take(context, tag & 7)) return std::nullopt;
  return draft;
}

// A message of one tree, followed by fields that are encoded already and a sequence number: a DraftResponse, or a
// DraftStreamResponse, whose fields for the first two have the same numbers. As in protobuf, zeros are left out.
class TreeMessage {
 public:
  TreeMessage(std::string_view nodes, std::uint32_t match_length, std::uint64_t match_count, std::string_view rest,
              std::uint64_t sequence)
      : nodes_(nodes), match_length_(match_length), match_count_(match_count), rest_(rest), sequence_(sequence) {
    if (!nodes_.empty()) tree_size_ += 1 + varint_size(nodes_.size()) + nodes_.size();
    if (match_length_ != 0) tree_size_ += 1 + varint_size(match_length_);
    if (match_count_ != 0) tree_size_ += 1 + varint_size(match_count_);
  }

  std::size_t size() const {
    return 1 + varint_size(tree_size_) + tree_size_ + rest_.size() + (sequence_ ? 1 + varint_size(sequence_) : 0);
  }

  // Writes `size()` bytes.
  void write(char* to) const {
    to = put_number(to, 1, FieldReader::kLength, tree_size_);
    if (!nodes_.empty()) to = put_bytes(put_number(to, 1, FieldReader::kLength, nodes_.size()), nodes_);
    if (match_length_ != 0) to = put_number(to, 2, FieldReader::kVarint, match_length_);
    if (match_count_ != 0) to = put_number(to, 3, FieldReader::kVarint, match_count_);
    to = put_bytes(to, rest_);
    if (sequence_ != 0) put_number(to, 3, FieldReader::kVarint, sequence_);
  }

 private:
  static std::size_t varint_size(std::uint64_t value) {
    std::size_t size = 1;
    for (; value >= 0x80; value >>= 7) ++size;
    return size;
  }

  static char* put_number(char* to, unsigned field, unsigned wire, std::uint64_t value) {
    *to++ = static_cast<char>(field << 3 | wire);
    for (; value >= 0x80; value >>= 7) *to++ = static_cast<char>(value | 0x80);
    *to++ = static_cast<char>(value);
    return to;
  }

  static char* put_bytes(char* to, std::string_view bytes) {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    return to + bytes.size();
  }

  std::string_view nodes_;
  std::uint32_t match_length_;
  std::uint64_t match_count_;
  std::string_view rest_;
  std::uint64_t sequence_;
  std::size_t tree_size_ = 0;
};

}  // namespace rest_store
