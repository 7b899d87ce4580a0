#include "tests/engine/allocation_count.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> alive = 0, peak = 0;

void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const size_t now = alive += malloc_usable_size(block);
  size_t before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {}
  return block;
}

void release(void* block) {
  if (block != nullptr) alive -= malloc_usable_size(block);
  std::free(block);
}

}  // namespace

// The array forms call these. So do the library's nothrow ones, but not a sanitizer's.
void* operator new(size_t size) { return counted(std::malloc(size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) { return nullptr; }
}
void* operator new(size_t size, std::align_val_t alignment) {
  const auto step = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(step, (size + step - 1) / step * step));
}
void operator delete(void* block) noexcept { release(block); }
void operator delete(void* block, size_t) noexcept { release(block); }
void operator delete(void* block, std::align_val_t) noexcept { release(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { release(block); }

namespace kveval {

size_t allocated_bytes() { return alive; }
size_t peak_allocated_bytes() { return peak; }
void reset_peak_allocated_bytes() { peak = alive.load(); }

}  // namespace kveval
