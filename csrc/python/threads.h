// Threads for callers that have none to lend: made for one parallel region and joined at its end. That costs some 20 us a thread, and
// asks nothing of the process: no pool to die in a fork, none to share between searches that run at the same time.
#pragma once

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/types.h"

namespace pairloom {

class Threads {
 public:
  explicit Threads(int count) : outer_(current_) { current_ = count; }
  ~Threads() { current_ = outer_; }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  Parallel parallel() const { return {&run, current_}; }

 private:
  static void run(int64_t count, Parallel::Task task, void* context) {
    const int64_t shares = std::min<int64_t>(count, current_);
    if (shares <= 1) return task(context, 0, count);
    std::mutex mutex;
    std::exception_ptr error;
    const auto share = [&](int64_t i) {
      try {
        task(context, count * i / shares, count * (i + 1) / shares);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        error = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(shares - 1));
    int64_t started = 1;
    try {
      for (; started < shares; ++started) threads.emplace_back(share, started);
    } catch (const std::system_error&) {  // no more to be had: the rest is done here
    }
    share(0);
    for (int64_t i = started; i < shares; ++i) share(i);
    for (std::thread& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  }

  // Of the thread that calls the core: its function pointer has no place for it.
  inline static thread_local int current_ = 1;
  int outer_;
};

}  // namespace pairloom
