// The number formats of weights. SIMD levels include this (engine/cpu/simd.h says why that matters): nothing
// but constants.
#pragma once

#include <cstdint>

namespace kveval {

enum class TensorType : uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
};
inline constexpr int kTensorTypes = 14;

// What the sixteen codes of IQ4_NL mean.
inline constexpr int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace kveval
