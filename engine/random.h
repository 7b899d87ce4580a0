// A small random generator whose every output is defined here, unlike those of the standard distributions.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/deterministic_math.h"

namespace kveval {

// splitmix64 (Steele, Lea and Flood, 2014): a counter through a 64-bit mixing function. Any seed is a good
// one.
struct Random {
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // Uniform over 0 .. n - 1, exactly: draws from the incomplete last run of n are thrown away. n > 0.
  uint64_t below(uint64_t n) {
    const uint64_t incomplete = (0 - n) % n;  // 2^64 mod n
    uint64_t draw = next();
    while (draw < incomplete) draw = next();
    return draw % n;
  }

  // Uniform over the 2^53 multiples of 2^-53 in [0, 1).
  double uniform() { return double(next() >> 11) * 0x1p-53; }

  // Mean 0, variance 1 (Box and Muller). Draws come in pairs; the second is kept for the next call.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * det::log(1.0 - uniform()));  // 1 - u is in (0, 1]
    const det::SinCos direction = det::sin_cos(0x1.921fb54442d18p+2 * uniform());
    spare_ = radius * direction.sin;
    has_spare_ = true;
    return radius * direction.cos;
  }

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace kveval
