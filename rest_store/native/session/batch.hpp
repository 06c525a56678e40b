// The drafts of many sessions at once, on all cores.
#pragma once

#include <atomic>
#include <exception>
#include <thread>

#include "session/thread_pool.hpp"
#include "session/tree_builder.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace rest_store {

// The number of threads of this process that may run at the same time.
inline std::size_t core_count() {
#if defined(__linux__)
  if (cpu_set_t cores; sched_getaffinity(0, sizeof cores, &cores) == 0)
    return static_cast<std::size_t>(CPU_COUNT(&cores));
#endif
  return std::max(1U, std::thread::hardware_concurrency());
}

// Call `work(i)` for all i below `count`, on this thread and on others, one for each core. Returns
// when all calls have ended. Each thread has a copy of `work`, which may keep memory from call to
// call. If calls throw, their threads end, and the exception of one of them is thrown.
template <class Work>
void on_all_cores(std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> has_failed{false};
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      Work own = work;
      for (std::size_t i = next++; i < count; i = next++) own(i);
    } catch (...) {
      if (!has_failed.exchange(true)) failure = std::current_exception();
    }
  };
  const std::size_t threads = std::min(core_count(), count);
  if (threads > 1) ThreadPool::shared().run(threads - 1, run);
  else run();
  if (failure) std::rethrow_exception(failure);
}

struct BatchDraft {
  TreeBuilder* builder;
  DraftOptions options;
};

// Build all drafts, of different builders. Each is the draft that its builder builds alone.
// Builders may share readers and recycled logits, which are thread-safe.
//
// A thread takes several drafts at a time, and reads the evidence of all of them together. Fewer
// would hide less of each other's latency, and more would leave cores without work.
inline void build_all(std::span<const BatchDraft> drafts) {
  constexpr std::size_t kLeast = 4, kMost = 8;
  const std::size_t cores = core_count();
  const std::size_t size = std::clamp((drafts.size() + cores - 1) / cores, kLeast, kMost);
  on_all_cores((drafts.size() + size - 1) / size,
               [drafts, size, scratch = DraftScratch()](std::size_t group) mutable {
                 const auto together =
                     drafts.subspan(group * size, std::min(size, drafts.size() - group * size));
                 for (const auto& [builder, options] : together) builder->begin(options);
                 for (;;) {
                   scratch.requests.clear();
                   for (const auto& [builder, options] : together)
                     if (builder->unfinished()) builder->request(scratch.requests);
                   // Nothing to do meanwhile: the requests hide each other's latency.
                   EvidenceReader::read(scratch.requests, scratch.evidence, [] {});
                   bool are_done = true;
                   for (const auto& [builder, options] : together)
                     if (builder->unfinished()) {
                       builder->look_up();
                       builder->expand(scratch);
                       are_done = are_done && !builder->unfinished();
                     }
                   if (are_done) return;
                 }
               });
}

}  // namespace rest_store
