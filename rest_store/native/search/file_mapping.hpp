// A file mapped for reading that survives pages which can no longer be read, because the file was
// truncated or its disk failed.
//
// Reading such a page raises SIGBUS, which ends the process. Here the rest of the mapping is
// replaced by zeros instead, and the mapping records the loss: the kernel stays within bounds
// for any bytes, and the caller can see that the answer is invalid.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <system_error>

#include "search/fork_mutex.hpp"

namespace rest_store {

// Immutable but for `lost`. Keeps no descriptor.
class FileMapping {
 public:
  // Map the first `size` bytes, at least 1, of the open file `descriptor`. Throws
  // std::system_error.
  //
  // One more page is mapped behind the file: where the separator at the end of a shard reads as
  // zeros, a comparison may go on past it, up to the size of a pattern. That page is lost together
  // with those before it.
  FileMapping(int descriptor, std::size_t size)
      : size_(size),
        mapped_size_((size + page_size() - 1) / page_size() * page_size() + page_size()) {
    install();
    range_ = free_range();
    void* start = mmap(nullptr, mapped_size_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (start == MAP_FAILED) {
      const int error = errno;
      range_->used.store(false);
      throw std::system_error(error, std::generic_category());
    }
    data_ = static_cast<const std::uint8_t*>(start);
    const auto begin = reinterpret_cast<std::uintptr_t>(start);
    range_->lost.store(false);
    range_->begin.store(begin);
    range_->end.store(begin + mapped_size_);
  }
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  ~FileMapping() {
    range_->end.store(0);  // before others may get these addresses
    munmap(const_cast<std::uint8_t*>(data_), mapped_size_);
    range_->used.store(false);
  }

  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Whether a page could not be read. It and the rest of the file now read as zeros.
  bool lost() const {
    std::atomic_thread_fence(
        std::memory_order_acquire);  // earlier reads may be zeros of another thread's loss
    return range_->lost.load(std::memory_order_acquire);
  }

  // Advise the system not to read ahead.
  void expect_scattered_reads() const {
    madvise(const_cast<std::uint8_t*>(data_), mapped_size_, MADV_RANDOM);
  }

 private:
  struct Range {  // of addresses; end 0: none
    std::atomic<bool> used{true}, lost{false};
    std::atomic<std::uintptr_t> begin{0}, end{0};
    Range* next = nullptr;
  };

  // Ranges are used again, never freed: the signal handler walks them without a lock.
  static Range* free_range() {
    const std::lock_guard lock(mutex());
    for (Range* range = first().load(); range != nullptr; range = range->next)
      if (!range->used.exchange(true)) return range;
    Range* range = new Range;
    range->next = first().load();
    first().store(range);
    return range;
  }

  static std::atomic<Range*>& first() {
    static std::atomic<Range*> value{nullptr};
    return value;
  }

  // The handler in whose place ours was installed last; null: the default. Never freed: a signal
  // may be reading it.
  static std::atomic<const struct sigaction*>& previous() {
    static std::atomic<const struct sigaction*> value{nullptr};
    return value;
  }

  static ForkMutex& mutex() {
    static ForkMutex value;
    return value;
  }

  static std::uintptr_t page_size() {
    static const auto value = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    return value;
  }

  // Install the handler, and again where another one has taken its place, as Ray's does, which ends
  // the process.
  static void install() {
    first();  // the handler's variables must exist before it can be called
    previous();
    page_size();
    const std::lock_guard lock(mutex());
    struct sigaction current = {};
    if (sigaction(SIGBUS, nullptr, &current) != 0)
      throw std::system_error(errno, std::generic_category());
    if (current.sa_sigaction == on_bus_error) return;
    const bool is_default = (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL;
    previous().store(is_default ? nullptr : new struct sigaction(current));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, nullptr) != 0)
      throw std::system_error(errno, std::generic_category());
  }

  // Async-signal-safe: atomics and system calls only.
  static void on_bus_error(int signal, siginfo_t* info, void* context) {
    const bool sent = info->si_code <= 0;  // by a process, not caused by a page
    if (sent || !replace(reinterpret_cast<std::uintptr_t>(info->si_addr)))
      forward(signal, info, context, sent);
  }

  // Replace the page at `address` and those after it in its mapping; false if it belongs to none.
  static bool replace(std::uintptr_t address) {
    for (Range* range = first().load(); range != nullptr; range = range->next) {
      // Another thread may be using the range again for another mapping: then both ends must be of
      // one of the two.
      const std::uintptr_t end = range->end.load(), begin = range->begin.load();
      if (address < begin || address >= end || range->end.load() != end) continue;
      range->lost.store(true, std::memory_order_release);  // before a zero can be read
      const std::uintptr_t page = address / page_size() * page_size();
      return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return false;
  }

  // A signal that is not ours belongs to the handler that was there before. One that a page causes,
  // it gets once: if it returns, the instruction runs again and ends the process.
  static void forward(int signal, siginfo_t* info, void* context, bool sent) {
    // A handler that was installed later and gives up, as Python's faulthandler does, restores ours
    // and sends the signal again. The instruction that failed runs again, too, and is ours or not.
    if (info->si_code == SI_TKILL && info->si_pid == getpid()) return;
    const struct sigaction* handler = sent ? previous().load() : previous().exchange(nullptr);
    if (handler == nullptr) {
      struct sigaction end = {};
      end.sa_handler = SIG_DFL;
      sigaction(signal, &end, nullptr);
      if (sent) raise(signal);  // pending until this handler returns
    } else if ((handler->sa_flags & SA_SIGINFO) != 0) {
      handler->sa_sigaction(signal, info, context);
    } else if (handler->sa_handler != SIG_IGN) {
      handler->sa_handler(signal);
    }
  }

  const std::uint8_t* data_ = nullptr;
  std::size_t size_, mapped_size_;
  Range* range_ = nullptr;
};

}  // namespace rest_store
