// Survives pages of mapped files that can no longer be read, because the file was truncated or its disk failed.
//
// Reading such a page raises SIGBUS, which ends the process. If a guard watches the page, the rest of its range is
// replaced by zeros instead, and the guard records the loss: the kernel stays within bounds whatever it reads, and the
// caller can see that the answer is invalid.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>

namespace rest_store {

class PageGuard {
 public:
  PageGuard() { install(); }
  PageGuard(const PageGuard&) = delete;
  PageGuard& operator=(const PageGuard&) = delete;

  ~PageGuard() {
    const std::lock_guard lock(mutex());
    for (Range* range = first().load(); range != nullptr; range = range->next)
      if (range->owner.load() == this) range->owner.store(nullptr);
  }

  // Watch the pages of `size` bytes at `start`, which must stay mapped while this guard lives.
  void watch(const void* start, std::size_t size) {
    const std::lock_guard lock(mutex());
    Range* range = first().load();
    while (range != nullptr && range->owner.load() != nullptr) range = range->next;
    if (range == nullptr) {  // ranges are reused, never freed: the signal handler walks them without a lock
      range = new Range;
      range->next = first().load();
      first().store(range);
    }
    const std::uintptr_t page = page_size();
    range->begin.store(reinterpret_cast<std::uintptr_t>(start) / page * page);
    range->end.store((reinterpret_cast<std::uintptr_t>(start) + size + page - 1) / page * page);
    range->owner.store(this);
  }

  // Whether a page could not be read since the guard was created.
  bool lost() const { return lost_.load(std::memory_order_acquire); }

 private:
  struct Range {
    std::atomic<PageGuard*> owner{nullptr};
    std::atomic<std::uintptr_t> begin{0}, end{0};
    Range* next = nullptr;
  };

  static std::atomic<Range*>& first() {
    static std::atomic<Range*> value{nullptr};
    return value;
  }

  static std::mutex& mutex() {
    static std::mutex value;
    return value;
  }

  static struct sigaction& previous() {
    static struct sigaction value = {};
    return value;
  }

  static std::uintptr_t page_size() {
    static const auto value = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    return value;
  }

  static void install() {
    static const bool once = [] {
      first();  // what the handler uses must exist before it can be called
      page_size();
      struct sigaction action = {};
      action.sa_sigaction = on_bus_error;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigemptyset(&action.sa_mask);
      if (sigaction(SIGBUS, &action, &previous()) != 0) throw std::runtime_error("SIGBUS cannot be handled");
      return true;
    }();
    static_cast<void>(once);
  }

  // Async-signal-safe: atomics and system calls only.
  static void on_bus_error(int, siginfo_t* info, void*) {
    if (info->si_code <= 0) return;  // sent by a process, not caused by a page
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    std::uintptr_t last = 0;  // end of the watched pages
    for (Range* range = first().load(); range != nullptr; range = range->next) {
      PageGuard* owner = range->owner.load();  // several guards may watch the same pages
      const std::uintptr_t begin = range->begin.load(), end = range->end.load();
      if (owner == nullptr || address < begin || address >= end) continue;
      owner->lost_.store(true, std::memory_order_release);  // before a zero can be read
      last = std::max(last, end);
    }
    const std::uintptr_t page = address / page_size() * page_size();
    if (last > page && mmap(reinterpret_cast<void*>(page), last - page, PROT_READ,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
      return;
    sigaction(SIGBUS, &previous(), nullptr);  // not ours: the instruction runs again under the previous handler
  }

  std::atomic<bool> lost_{false};
};

}  // namespace rest_store
