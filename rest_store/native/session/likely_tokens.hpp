// The tokens that the target model finds likely after a context: after one forward pass, and over
// all passes after the same last tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "session/continuations.hpp"

namespace rest_store {

constexpr std::size_t kTopK = 8;  // likely tokens of one context

// The most likely tokens of one forward pass, the likeliest first.
struct TopTokens {
  std::uint32_t size = 0;  // 0: unknown
  std::array<Token, kTopK> tokens{};
};

// The most likely tokens over all passes. A pass gives the r-th likeliest token a weight of 1/r^2,
// and each later pass takes a fifth of it.
class LikelyTokens {
 public:
  std::size_t size() const { return size_; }  // 0: unknown
  // In order of descending weight; valid until the next learn().
  std::span<const Token> tokens() const { return std::span(tokens_).first(size_); }
  std::uint32_t times() const { return times_; }  // passes so far, at most kMaxTimes

  // The weight of the i-th token, as a share of its weight had it always been the likeliest.
  float share(std::size_t i) const {
    return static_cast<float>(weights_[i]) /
           kWhole[std::min<std::size_t>(times_, kWhole.size() - 1)];
  }

  // Learn the likely tokens of a further pass.
  void learn(const TopTokens& top) {
    const LikelyTokens before = *this;
    size_ = 0;
    if (times_ < kMaxTimes) ++times_;
    for (std::size_t i = 0; i < before.size_; ++i) {
      const auto rank =
          std::find(top.tokens.begin(), top.tokens.begin() + top.size, before.tokens_[i]);
      insert(before.tokens_[i],
             before.weights_[i] * 4U / 5 + weight_of(top, rank - top.tokens.begin()));
    }
    const auto known = before.tokens();
    for (std::size_t i = 0; i < top.size; ++i)
      if (std::find(known.begin(), known.end(), top.tokens[i]) == known.end())
        insert(top.tokens[i], weight_of(top, static_cast<std::ptrdiff_t>(i)));
  }

 private:
  static constexpr std::uint32_t kOnce = 8192;    // weight of the likeliest token of one pass
  static constexpr std::uint8_t kMaxTimes = 255;  // further passes are not counted
  // By times, the weight of a token that was always the likeliest.
  static constexpr auto kWhole = [] {
    std::array<float, 32> out{};
    for (std::size_t times = 1; times < out.size(); ++times)
      out[times] = 0.8F * out[times - 1] + kOnce;
    return out;
  }();

  static std::uint32_t weight_of(const TopTokens& top, std::ptrdiff_t rank) {
    return rank == top.size ? 0 : kOnce / static_cast<std::uint32_t>((rank + 1) * (rank + 1));
  }

  // Insert `token` behind those of the same weight; if there are too many, the lightest is dropped.
  void insert(Token token, std::uint32_t weight) {
    std::size_t rank = size_;
    while (rank > 0 && weights_[rank - 1] < weight) --rank;
    if (rank == kTopK || weight == 0) return;
    if (size_ < kTopK) ++size_;
    for (std::size_t i = size_ - 1U; i > rank; --i) {
      tokens_[i] = tokens_[i - 1];
      weights_[i] = weights_[i - 1];
    }
    tokens_[rank] = token;
    weights_[rank] = static_cast<std::uint16_t>(weight);
  }

  std::array<Token, kTopK> tokens_{};
  std::array<std::uint16_t, kTopK> weights_{};
  std::uint8_t size_ = 0, times_ = 0;
};

}  // namespace rest_store
