// A fuzzer's input as a file, and the memory it may cost to read.
#pragma once

#include <sanitizer/allocator_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace kveval::fuzz {

// In memory, with a path: readers open files themselves.
class InputFile {
 public:
  InputFile(const uint8_t* bytes, size_t size) : fd_(memfd_create("input", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, bytes, size) != ssize_t(size)) std::abort();
  }
  ~InputFile() { close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

inline size_t alive = 0, peak = 0;

// The sanitizer's own hooks: they see operator new and malloc alike.
inline void count_allocations() {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(
      [](const volatile void*, size_t size) {
        alive += size;
        if (alive > peak) peak = alive;
      },
      [](const volatile void* block) { alive -= __sanitizer_get_allocated_size(block); });
  if (installed == 0) std::abort();
}

// Four times the input, and what paths, messages and a parser's first buffers take.
template <class Read>
void within_budget(size_t input_size, Read read) {
  count_allocations();
  const size_t before = alive;
  peak = alive;
  read();
  const size_t used = peak - before, budget = 4 * input_size + (1 << 17);
  if (used > budget) {
    std::fprintf(stderr, "reading %zu bytes allocated %zu, the budget is %zu\n", input_size, used, budget);
    std::abort();
  }
}

}  // namespace kveval::fuzz
