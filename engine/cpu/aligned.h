// Floats for vector code: 64-byte aligned, on huge pages once there are many. Weights streamed at m = 1 would
// otherwise be bound by page walks.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/error.h"

namespace kveval::cpu {

// Not initialised. Movable.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t floats) { reserve(floats); }

  float* data() { return floats_.get(); }
  const float* data() const { return floats_.get(); }
  size_t size() const { return size_; }

  // Room for at least `floats`; what was there is lost when it must grow. Throws Error{run} when memory runs
  // out.
  float* reserve(size_t floats) {
    if (floats <= size_) return data();
    constexpr size_t kHugePage = size_t(2) << 20;
    const size_t alignment = floats >= kHugePage / sizeof(float) ? kHugePage : 64;
    const size_t bytes = (floats * sizeof(float) + alignment - 1) / alignment * alignment;
    size_ = 0;
    floats_.reset();  // first give back: two generations never live side by side
    floats_.reset(static_cast<float*>(std::aligned_alloc(alignment, bytes)));
    if (!floats_) {
      throw Error(ErrorKind::run,
                  "out of memory for " + std::to_string(bytes >> 20) + " MiB of working space",
                  "use shorter lengths or a smaller model");
    }
    if (alignment == kHugePage)
      madvise(floats_.get(), bytes, MADV_HUGEPAGE);  // refused: slower, nothing else
    size_ = floats;
    return data();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> floats_;
  size_t size_ = 0;
};

}  // namespace kveval::cpu
