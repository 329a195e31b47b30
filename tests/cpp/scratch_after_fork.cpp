// A process that is forked while another thread takes or gives back scratch memory can go on: the child finds the store of blocks
// whole and unlocked. (Data loaders fork, and the lock's owner is not there in the child.)
#include <cstdio>

#if defined(__linux__)
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/scratch.h"

namespace {

void use_blocks() {
  for (const uint64_t bytes : {uint64_t{70} << 10, uint64_t{90} << 10}) {
    void* block = pairloom::acquire_scratch(bytes);
    pairloom::release_scratch(block, bytes);
  }
}

}  // namespace

int main() {
  constexpr unsigned kSeconds = 20;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) use_blocks();
  });
  int failures = 0;
  for (int i = 0; i < 300 && failures == 0; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kSeconds);  // ends a child that waits for ever
      use_blocks();
      _exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++failures;
  }
  stop = true;
  busy.join();
  std::printf("%d failures\n", failures);
  return failures;
}
#else
int main() { return 0; }
#endif
