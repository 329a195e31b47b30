#include "ort/tensors.h"

#include <algorithm>
#include <mutex>

namespace pairloom {

thread_local const Context::Pool* Context::current_ = nullptr;

// Whole shares to each thread, as many as there are; what a share throws is thrown here.
void Context::run(int64_t count, Parallel::Task task, void* data) {
  struct Work {
    int64_t count, shares;
    Parallel::Task task;
    void* data;
    std::mutex mutex;
    std::exception_ptr error;
  };
  const Pool& pool = *current_;
  Work work{count, std::min<int64_t>(count, pool.threads), task, data, {}, nullptr};
  if (work.shares <= 1) return task(data, 0, count);
  const auto share = [](void* context, size_t index) {
    Work& whole = *static_cast<Work*>(context);
    const int64_t i = static_cast<int64_t>(index);
    try {
      whole.task(whole.data, whole.count * i / whole.shares, whole.count * (i + 1) / whole.shares);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(whole.mutex);
      whole.error = std::current_exception();
    }
  };
  succeed(pool.api->KernelContext_ParallelFor(pool.context, share, static_cast<size_t>(work.shares), 0, &work));
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace pairloom
