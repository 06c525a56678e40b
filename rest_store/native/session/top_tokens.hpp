// The most likely tokens of rows of logits.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "session/likely_tokens.hpp"

namespace rest_store {

// Write the tokens of the greatest logits of one row to `out`, the greatest first, of equal ones
// the first. `out` has 1 .. kTopK elements, all -1 before the call; they stay so where there are
// fewer tokens. NaN and minus infinity are no likely tokens.
inline void top_tokens(std::span<const float> logits, std::span<std::int32_t> out) {
  constexpr std::size_t kBlock = 64;  // logits compared at once; few blocks have one to insert
  std::array<float, kTopK> best;
  best.fill(-std::numeric_limits<float>::infinity());
  const std::size_t last = out.size() - 1;
  for (std::size_t block = 0; block < logits.size(); block += kBlock) {
    const auto compared = logits.subspan(block, std::min(kBlock, logits.size() - block));
    const float least = best[last];
    int greater = 0;
    for (const float logit : compared) greater |= logit > least;
    if (greater == 0) continue;
    for (std::size_t i = 0; i < compared.size(); ++i) {
      if (!(compared[i] > best[last])) continue;
      std::size_t rank = last;
      for (; rank > 0 && best[rank - 1] < compared[i]; --rank) {
        best[rank] = best[rank - 1];
        out[rank] = out[rank - 1];
      }
      best[rank] = compared[i];
      out[rank] = static_cast<std::int32_t>(block + i);
    }
  }
}

}  // namespace rest_store
