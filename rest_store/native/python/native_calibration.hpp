// A calibration as Python holds it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <memory>
#include <mutex>
#include <vector>

#include "search/fork_mutex.hpp"
#include "session/acceptance.hpp"

namespace rest_store {

// Trees from bytes: the base, then the trees as they lie in memory. Damaged bytes raise ValueError.
Gbdt gbdt_of(const nanobind::bytes& packed);

// Trees as bytes, and in the layout that is evaluated.
struct CalibrationTrees {
  nanobind::bytes frozen_gbdt, live_gbdt, text_gbdt;
  FittedTrees fitted;
};

// Fitted trees and weights learnt online, shared by sessions. Thread-safe.
class NativeCalibration {
 public:
  // Empty `live` or `text`: there are none of this kind.
  NativeCalibration(const nanobind::bytes& frozen, const nanobind::bytes& live,
                    const nanobind::bytes& text)
      : trees_(std::make_shared<CalibrationTrees>(CalibrationTrees{
            frozen, live, text,
            FittedTrees{IntegerTrees(gbdt_of(frozen)), trees_of(live), trees_of(text)}})) {}
  // A copy, which shares the trees and learns on its own.
  NativeCalibration(const NativeCalibration& other)
      : trees_(other.trees_), online_(other.online_now()) {}
  NativeCalibration& operator=(const NativeCalibration&) = delete;

  const CalibrationTrees& trees() const { return *trees_; }

  OnlineCalibration online_now() const {
    const std::lock_guard lock(mutex_);
    return online_;
  }
  void add(const OnlineCalibration& before, const OnlineCalibration& after) {
    const std::lock_guard lock(mutex_);
    online_.add(before, after);
  }
  OnlineCalibration::Weights weights() const { return online_now().weights(); }
  void set_weights(const OnlineCalibration::Weights& weights) {
    for (const float weight : weights)
      if (!std::isfinite(weight)) throw nanobind::value_error("not finite");
    const std::lock_guard lock(mutex_);
    online_.set_weights(weights);
  }

 private:
  static IntegerTrees trees_of(const nanobind::bytes& packed) {
    return packed.size() == 0 ? IntegerTrees() : IntegerTrees(gbdt_of(packed));
  }

  std::shared_ptr<const CalibrationTrees> trees_;
  OnlineCalibration online_;
  mutable ForkMutex mutex_;
};

}  // namespace rest_store
