// A calibration as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <vector>

#include "search/fork_mutex.hpp"
#include "session/acceptance.hpp"

namespace rest_store {

// Trees from bytes: the base, then the trees as they lie in memory. ValueError: what is wrong with them.
Gbdt gbdt_of(const nanobind::bytes& packed);

// Trees as they were given, and as they are evaluated.
struct CalibrationTrees {
  explicit CalibrationTrees(Gbdt frozen, Gbdt live)
      : frozen_gbdt(std::move(frozen)),
        live_gbdt(std::move(live)),
        fitted{IntegerTrees(frozen_gbdt), IntegerTrees(live_gbdt)} {}

  Gbdt frozen_gbdt, live_gbdt;
  FittedTrees fitted;
};

// Fitted trees and what was learnt online, shared by sessions. Thread-safe.
class NativeCalibration {
 public:
  NativeCalibration(const nanobind::bytes& frozen, const nanobind::bytes& live)
      : trees_(std::make_shared<CalibrationTrees>(gbdt_of(frozen), live.size() == 0 ? Gbdt() : gbdt_of(live))) {}
  // A copy, which shares the trees and learns on its own.
  NativeCalibration(const NativeCalibration& other) : trees_(other.trees_), online_(other.online_now()) {}
  NativeCalibration& operator=(const NativeCalibration&) = delete;

  const CalibrationTrees& trees() const { return *trees_; }

  OnlineCalibration online_now() const {
    const std::lock_guard lock(mutex_);
    return online_;
  }
  // Add what one step has changed, so that concurrent sessions do not undo each other's changes.
  void add(const OnlineCalibration& before, const OnlineCalibration& after) {
    OnlineCalibration change;
    change.bias = after.bias - before.bias;
    bool finite = std::isfinite(change.bias);
    for (std::size_t i = 0; i < OnlineCalibration::kOrigins; ++i) {
      change.weights[i] = after.weights[i] - before.weights[i];
      finite = finite && std::isfinite(change.weights[i]);
    }
    if (!finite) return;
    const std::lock_guard lock(mutex_);
    online_.bias += change.bias;
    for (std::size_t i = 0; i < OnlineCalibration::kOrigins; ++i) online_.weights[i] += change.weights[i];
    online_.clamp();
  }
  std::vector<float> weights() const {
    const OnlineCalibration now = online_now();
    std::vector<float> out{now.bias};
    out.insert(out.end(), now.weights.begin(), now.weights.end());
    return out;
  }
  void set_weights(const std::vector<float>& weights) {
    if (weights.size() != 1 + OnlineCalibration::kOrigins) throw nanobind::value_error("of another number");
    for (const float weight : weights)
      if (!std::isfinite(weight)) throw nanobind::value_error("not finite");
    const std::lock_guard lock(mutex_);
    online_.bias = weights[0];
    std::copy(weights.begin() + 1, weights.end(), online_.weights.begin());
    online_.clamp();
  }

 private:
  std::shared_ptr<const CalibrationTrees> trees_;
  OnlineCalibration online_;
  mutable ForkMutex mutex_;
};

}  // namespace rest_store
