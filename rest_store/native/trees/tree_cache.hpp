// The trees of heavy matches: they are few, recur often, and cost the most to draft.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "search/fork_mutex.hpp"
#include "trees/draft.hpp"

namespace rest_store {

// Emptied when it is full. Thread-safe.
class TreeCache {
 public:
  // Trees of matches with at least so many occurrences are worth caching.
  static constexpr std::uint64_t kHeavy = 64;

  using Tree = std::shared_ptr<const MatchTree>;

  // The key of a tree. `tokens`: of its match, as bytes of a tokens file.
  static std::string key(std::string_view tokens, const TreeLimits& limits) {
    std::string key(tokens);
    key.append(reinterpret_cast<const char*>(&limits), sizeof limits);
    return key;
  }

  // The tree of `key`; null if there is none.
  Tree find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto entry = trees_.find(key);
    return entry == trees_.end() ? nullptr : entry->second;
  }

  // Add a tree, unless there is one of this key.
  void insert(std::string key, Tree tree) {
    const std::lock_guard lock(mutex_);
    if (bytes_ > kBytes) {
      trees_.clear();
      bytes_ = 0;
    }
    bytes_ += kEntryBytes + key.size() + tree->columns.size();
    trees_.emplace(std::move(key), std::move(tree));
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;
  static constexpr std::size_t kEntryBytes = 200;  // of an entry besides key and columns, about

  ForkMutex mutex_;
  std::unordered_map<std::string, Tree> trees_;
  std::size_t bytes_ = 0;
};

}  // namespace rest_store
