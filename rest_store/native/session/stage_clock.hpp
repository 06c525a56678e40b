// Where the time of drafting goes, for benchmarks.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace rest_store {

enum class Stage : std::size_t { kText, kLogits, kRoot, kBelow, kCandidates, kCalibration, kSearch };

// Adds up the time of each stage. While it is off, it costs a comparison.
class StageClock {
 public:
  static constexpr std::array kNames{
      "prompt lookup", "recycled logits", "evidence of the context", "evidence of nodes", "candidates",
      "calibration",   "search"};

  bool on = false;
  std::array<double, kNames.size()> seconds{};

  // The next stage begins now.
  void start() {
    if (on) [[unlikely]]
      last_ = Clock::now();
  }
  // What was done since the last call was of `stage`.
  void count(Stage stage) {
    if (on) [[unlikely]] {
      const auto now = Clock::now();
      seconds[static_cast<std::size_t>(stage)] += std::chrono::duration<double>(now - last_).count();
      last_ = now;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_;
};

}  // namespace rest_store
