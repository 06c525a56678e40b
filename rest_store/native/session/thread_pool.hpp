// Threads that wait for work: to start one takes as long as drafting for several sessions.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "search/fork_mutex.hpp"

namespace rest_store {

// Thread-safe.
class ThreadPool {
 public:
  // The pool of this process. It is never deleted: its threads wait in it until the process ends.
  static ThreadPool& shared() {
    static ForkMutex mutex;
    static ThreadPool* pool = nullptr;
    static pid_t process = 0;
    const std::lock_guard lock(mutex);
    if (process != getpid()) {  // after a fork, the threads are the parent's
      pool = new ThreadPool();
      process = getpid();
    }
    return *pool;
  }

  // Call `task` on this thread, and on up to `others` threads that become free before this thread's
  // call has ended. Returns when all of these calls have ended. `task` throws nothing.
  void run(std::size_t others, const std::function<void()>& task) {
    Job job{&task, others, 0};
    {
      const std::lock_guard lock(mutex_);
      start_threads(others);
      jobs_.push_back(&job);
    }
    has_jobs_.notify_all();
    task();
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);
    has_ended_.wait(lock, [&] { return job.active == 0; });
  }

 private:
  struct Job {
    const std::function<void()>* task;
    std::size_t wanted;  // threads that may still join
    std::size_t active;  // threads that have joined, and not ended
  };

  ThreadPool() = default;

  void start_threads(std::size_t count) {
    try {
      for (; thread_count_ < count; ++thread_count_) std::thread(&ThreadPool::work, this).detach();
    } catch (const std::system_error&) {  // the system has no more threads
    }
  }

  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      has_jobs_.wait(lock, [&] { return !jobs_.empty(); });
      Job& job = *jobs_.front();
      if (--job.wanted == 0) jobs_.erase(jobs_.begin());
      ++job.active;
      lock.unlock();
      (*job.task)();
      lock.lock();
      if (--job.active == 0) has_ended_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_jobs_, has_ended_;
  std::vector<Job*> jobs_;  // the jobs that threads may join, the oldest first
  std::size_t thread_count_ = 0;
};

}  // namespace rest_store
