// What operator new holds: bytes alive now, and the most that were alive since the last reset. Replaces the
// global operators of the whole test program (allocation_count.cpp).
#pragma once

#include <cstddef>

namespace kveval {

size_t allocated_bytes();
size_t peak_allocated_bytes();
void reset_peak_allocated_bytes();  // to what is alive now

}  // namespace kveval
