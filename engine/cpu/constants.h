// Numbers that the definition (scalar.cpp) and the SIMD levels share. Nothing but constants: every level
// includes it.
#pragma once

namespace kveval::cpu {

// exp2(x): n = x rounded to an integer, r = x - n in [-1/2, 1/2], 2^n * p(r); p has degree 6 (minimax, 0.93
// ulp).
inline constexpr float kExp2[] = {1.f,
                                  0.6931471824645996f,
                                  0.24022647738456726f,
                                  0.055503323674201965f,
                                  0.00961843691766262f,
                                  0.0013398875016719103f,
                                  0.00015353361959569156f};
// The same to 2.8e-6, for softmax weights that are rounded to bfloat16 (2e-3) and the corrections of their
// sums: degree 4.
inline constexpr float kExp2Short[] = {1.f, 0.6931241750717163f, 0.24024099111557007f, 0.055906426161527634f,
                                       0.009582852944731712f};
inline constexpr float kRound =
    12582912.f;  // 1.5 * 2^23: x + kRound rounds x to an integer, kept in the low bits
inline constexpr float kExp2Lowest = -126.f;  // below it exp2 is +0, so no result is ever denormal
inline constexpr float kExp2Highest = 127.f;  // callers clamp: above it the exponent would wrap around
inline constexpr float kLog2E = 1.44269502f;  // float32 nearest to log2(e)

// GELU's tanh form as a sigmoid: 0.5 (1 + tanh(y)) = sigmoid(2 y), y = sqrt(2/pi) (x + 0.044715 x^3).
inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kGeluLog2E = 2.30220819f;  // 2 sqrt(2/pi) log2(e)

// k a blocked matrix product handles at a time: 512 rows of A (640 KB) stay in L2, two panels (40 KB) in L1
// and L2. A multiple of every format's group (but not of K-quants' 256). No multiple of 1,024 bytes' worth of
// floats: rows this far apart spread over the cache sets.
inline constexpr int kGemmDepth = 320;
inline constexpr int kGemmPanels = 2;  // of decoded weights, [kGemmDepth][16] floats or pairs each
// Rows that are multiplied without panels, at most. bfloat16 keeps all of their pairs in the scratch space.
inline constexpr int kGemmFewRows = 10;

}  // namespace kveval::cpu
