// What a calibration learns while it is in use: a few weights on top of its trees, moved a little after each step
// towards what was accepted. Bounded, and pulled back to nothing, so that no domain spoils it for good.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace rest_store {

struct OnlineCalibration {
  static constexpr std::size_t kOrigins = 4;  // prompt lookup, recycled logits, datastores, agreement of several

  float bias = 0;
  std::array<float, kOrigins> origins{};

  float of(std::uint32_t bits) const {
    float sum = bias;
    for (std::size_t i = 0; i < kOrigins; ++i)
      if (has(bits, i)) sum += origins[i];
    return sum;
  }

  // A row with these origins had `probability` and was right, or not.
  void learn(std::uint32_t bits, float probability, bool right) {
    const float step = kRate * (static_cast<float>(right) - probability);
    bias += step;
    for (std::size_t i = 0; i < kOrigins; ++i)
      if (has(bits, i)) origins[i] += step;
  }

  // Pull back to nothing, a little, and within limits.
  void settle() {
    bias *= kFade;
    for (float& weight : origins) weight *= kFade;
    bound();
  }

  void bound() {
    const auto hold = [](float& weight) { weight = std::clamp(weight, -kMost, kMost); };
    hold(bias);
    std::for_each(origins.begin(), origins.end(), hold);
  }

 private:
  static constexpr float kRate = 0.01F, kFade = 0.9998F, kMost = 1.0F;

  static bool has(std::uint32_t bits, std::size_t origin) {
    if (origin < 2) return (bits >> origin & 1) != 0;
    if (origin == 2) return bits >> 2 != 0;
    return (bits & (bits - 1)) != 0;
  }
};

}  // namespace rest_store
