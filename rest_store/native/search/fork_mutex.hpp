// A mutex for data that forked processes go on using.
#pragma once

#include <pthread.h>

#include <mutex>

namespace rest_store {

// A mutex that no other thread holds while the process forks: fork waits for them. In the child
// those threads are gone, and would never release it.
//
// For short sections that take no other lock, so that fork can take all of them one after the
// other.
class ForkMutex {
 public:
  ForkMutex() {
    static const int registered = pthread_atfork(lock_all, unlock_all, unlock_all);
    static_cast<void>(registered);
    const std::lock_guard lock(registry());
    next_ = first();
    if (next_ != nullptr) next_->previous_ = this;
    first() = this;
  }
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  ~ForkMutex() {
    const std::lock_guard lock(registry());
    (previous_ == nullptr ? first() : previous_->next_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static std::mutex& registry() {
    static std::mutex value;
    return value;
  }

  static ForkMutex*& first() {
    static ForkMutex* value = nullptr;
    return value;
  }

  static void lock_all() {
    registry().lock();
    for (ForkMutex* mutex = first(); mutex != nullptr; mutex = mutex->next_) mutex->lock();
  }

  static void unlock_all() {
    for (ForkMutex* mutex = first(); mutex != nullptr; mutex = mutex->next_) mutex->unlock();
    registry().unlock();
  }

  std::mutex mutex_;
  ForkMutex* previous_ = nullptr;
  ForkMutex* next_ = nullptr;
};

}  // namespace rest_store
