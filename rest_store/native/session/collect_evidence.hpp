// What datastores know along the paths that a draft tree may take, read for a session elsewhere: it has more sources
// than these, so every path is read that it might want, the likeliest first, as far as can be told from here.
#pragma once

#include "session/acceptance.hpp"
#include "session/evidence_rows.hpp"
#include "session/frontier.hpp"

namespace rest_store {

// A node of the tree that the session's other sources would draft.
struct Hint {
  Token token;
  std::int32_t parent;  // place among the hints, before its own; -1: child of the context
  float chance;         // that it is accepted, given that its parent is
};

// Bounds of one survey.
struct SurveyBounds {
  std::size_t max_rows;    // paths read, that of the context among them
  std::size_t max_suffix;  // longest suffix of the context that is looked for, in tokens
  std::size_t max_depth;   // longest path, in tokens
};

// Not thread-safe; keeps its memory between calls.
class Survey {
 public:
  // Read what `readers` know after `tail`, the end of a context.
  void run(std::span<EvidenceReader* const> readers, const Forest* forest, std::span<const Token> tail,
           std::span<const Hint> hints, const SurveyBounds& bounds) {
    readers_ = readers;
    forest_ = forest;
    hints_ = hints;
    bounds_ = bounds;
    text_.assign(tail.begin(), tail.end());
    trusts_.stores.assign(readers.size(), Trust());
    paths_.clear();
    nodes_.clear();
    open_.clear();
    number_ = 0;
    readings_ = 0;
    take({1, 0, 0, -1, -1, 1, read_root()});
    while (paths_.size() < bounds.max_rows) {
      if (open_.empty() && !spread()) return;
      if (open_.best().reading < 0) read_ahead();
      take(open_.pop());
    }
  }

  std::span<const PathEnd> paths() const { return paths_; }
  const Evidence& evidence(std::size_t row, std::size_t store) const { return opinions_of(row).stores[store]; }

 private:
  struct Open {
    float score;
    std::uint32_t number;
    Token token;
    std::int32_t parent;  // row
    std::int32_t hint;    // the hint of the same path; -1: none
    float chance;
    std::int32_t reading = -1;  // place of what was read of it; -1: nothing yet
  };
  struct Node {
    std::size_t depth;
    float score;
    std::int32_t hint;
    std::size_t reading;
  };

  static constexpr std::size_t kAhead = 8;  // paths read together: one waits for memory about as long as eight

  const Opinions& opinions_of(std::size_t row) const { return opinions_[nodes_[row].reading]; }

  std::size_t depth_of(const Open& open) const {
    return open.parent < 0 ? 0 : nodes_[static_cast<std::size_t>(open.parent)].depth + 1;
  }

  Opinions& next_reading() {
    if (opinions_.size() == readings_) opinions_.emplace_back();
    Opinions& opinions = opinions_[readings_++];
    opinions.stores.resize(readers_.size());
    opinions.present.assign(readers_.size(), true);
    return opinions;
  }

  std::int32_t read_root() {
    Opinions& opinions = next_reading();
    const std::span<const Token> tail = std::span(text_).last(std::min(text_.size(), bounds_.max_suffix));
    for (std::size_t i = 0; i < readers_.size(); ++i) readers_[i]->root(tail, opinions.stores[i]);
    return 0;
  }

  // Read the best of what is open, and with it some that come next and will most likely be rows, too.
  void read_ahead() {
    const std::size_t left = bounds_.max_rows - paths_.size();
    const std::size_t most = std::min({kAhead, (left + 1) / 2, open_.size()});
    ahead_.clear();
    opinions_.reserve(readings_ + most);  // children point into them
    tails_.resize(kAhead);
    children_.clear();
    while (ahead_.size() < most) {
      ahead_.push_back(open_.pop());
      Open& open = ahead_.back();
      if (open.reading >= 0) continue;
      open.reading = static_cast<std::int32_t>(readings_);
      Opinions& own = next_reading();
      const Opinions& above = opinions_of(static_cast<std::size_t>(open.parent));
      const std::span<const Token> tail = tail_of(open, tails_[ahead_.size() - 1]);
      for (std::size_t i = 0; i < readers_.size(); ++i)
        children_.push_back({readers_[i], &above.stores[i], tail, &own.stores[i]});
    }
    EvidenceReader::read(children_);
    for (const Open& open : ahead_) open_.push(open);
  }

  // The end of the context and the path of `open`, kept in `tail`.
  std::span<const Token> tail_of(const Open& open, std::vector<Token>& tail) const {
    const std::size_t depth = depth_of(open), from = std::min(text_.size(), bounds_.max_suffix);
    tail.assign(text_.end() - static_cast<std::ptrdiff_t>(from), text_.end());
    tail.resize(from + depth);
    std::size_t place = tail.size();
    tail[--place] = open.token;
    for (std::int32_t at = open.parent; at > 0; at = paths_[static_cast<std::size_t>(at)].parent)
      tail[--place] = paths_[static_cast<std::size_t>(at)].token;
    return tail;
  }

  // Make a row of `open`, which has been read, and open its continuations.
  void take(const Open& open) {
    const std::size_t row = paths_.size();
    const std::size_t depth = depth_of(open);
    paths_.push_back({open.parent, open.token});
    nodes_.push_back({depth, open.score, open.hint, static_cast<std::size_t>(open.reading)});
    if (depth == bounds_.max_depth || !open_.worth_following(open.score, bounds_.max_rows - paths_.size())) return;
    const Opinions& opinions = opinions_of(row);
    Place facts;
    facts.depth = static_cast<float>(depth);
    facts.score = open.score;
    facts.chance = open.chance;
    proposals_.gather(opinions, trusts_, facts, history_, open.score >= 0.3F ? kProposals : kLanes);
    std::array<float, kProposals> chances = chances_of(proposals_, forest_, Correction());
    std::array<std::int32_t, kProposals> hint_of;
    hint_of.fill(-1);
    if (row == 0 || open.hint >= 0)
      for (std::size_t i = 0; i < hints_.size(); ++i) {
        if (hints_[i].parent != open.hint) continue;
        std::size_t own = 0;
        while (own < proposals_.size() && proposals_.token(own) != hints_[i].token) ++own;
        if (own == proposals_.size()) push(row, hints_[i].token, static_cast<std::int32_t>(i), hints_[i].chance);
        else {
          hint_of[own] = static_cast<std::int32_t>(i);
          chances[own] += (1 - chances[own]) * hints_[i].chance;
        }
      }
    for (std::size_t own = 0; own < proposals_.size(); ++own)
      push(row, proposals_.token(own), hint_of[own], chances[own]);
  }

  void push(std::size_t row, Token token, std::int32_t hint, float chance) {
    const float score = nodes_[row].score * chance;
    if (score >= open_.bar()) open_.push({score, number_++, token, static_cast<std::int32_t>(row), hint, chance});
  }

  // When nothing is open any more: open, after every path, all tokens that were named by anybody. Whether there was
  // one.
  bool spread() {
    named_.clear();
    for (const Hint& hint : hints_) named_.push_back(hint.token);
    named_.insert(named_.end(), text_.begin(), text_.end());
    for (std::size_t row = 0; row < paths_.size(); ++row)
      for (const Evidence& evidence : opinions_of(row).stores)
        for (const Rung& rung : evidence.rungs)
          for (const Continuation& one : rung.next) named_.push_back(one.token);
    std::sort(named_.begin(), named_.end());
    named_.erase(std::unique(named_.begin(), named_.end()), named_.end());
    for (std::size_t row = 0; row < paths_.size(); ++row) {
      if (nodes_[row].depth == bounds_.max_depth) continue;
      for (const Token token : named_) {
        const auto known = [&](const PathEnd& path) {
          return path.parent == static_cast<std::int32_t>(row) && path.token == token;
        };
        if (std::none_of(paths_.begin() + 1, paths_.end(), known)) push(row, token, -1, 0);
      }
    }
    return !open_.empty();
  }

  std::span<EvidenceReader* const> readers_;
  const Forest* forest_ = nullptr;
  std::span<const Hint> hints_;
  SurveyBounds bounds_{};
  std::vector<Token> text_;
  Trusts trusts_;
  History history_;  // empty: the text stays with the session
  std::vector<PathEnd> paths_;
  std::vector<Node> nodes_;
  std::vector<Opinions> opinions_;  // of each path that was read
  std::size_t readings_ = 0;        // of those, in this survey
  Frontier<Open> open_;
  std::vector<Open> ahead_;  // what was taken out of it to be read
  std::vector<std::vector<Token>> tails_;
  std::uint32_t number_ = 0;
  std::vector<EvidenceReader::Child> children_;
  Proposals proposals_;
  std::vector<Token> named_;
};

}  // namespace rest_store
