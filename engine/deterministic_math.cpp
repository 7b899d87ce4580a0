#include "engine/deterministic_math.h"

#include <bit>
#include <cstdint>
#include <limits>

namespace kveval::det {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ln 2 with 32 leading bits apart, so that k * kLn2High is exact for every exponent k.
constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kLog2E = 0x1.71547652b82fep+0;

// pi/2 in two parts of 30 bits and the rest: products with integers up to 2^23 are exact.
constexpr double kHalfPi1 = 0x1.921fb54000000p+0;
constexpr double kHalfPi2 = 0x1.10b4611800000p-30;
constexpr double kHalfPi3 = 0x1.313198a2e0370p-61;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// high + low, unevaluated: about twice the precision of one double.
struct Pair {
  double high, low;
};

Pair exact_sum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

Pair split(double a) {
  const double scaled = a * 134217729.0;  // 2^27 + 1 (Veltkamp)
  const double high = scaled - (scaled - a);
  return {high, a - high};
}

Pair exact_product(double a, double b) {
  const double product = a * b;
  const Pair x = split(a), y = split(b);
  return {product, ((x.high * y.high - product) + x.high * y.low + x.low * y.high) + x.low * y.low};
}

int64_t nearest(double x) { return int64_t(x < 0 ? x - 0.5 : x + 0.5); }

double power_of_two(int64_t exponent) {  // -1022 .. 1023
  return std::bit_cast<double>(uint64_t(exponent + 1023) << 52);
}

double horner(double x, const double* coefficients, int count) {  // highest power first
  double sum = coefficients[0];
  for (int i = 1; i < count; ++i) sum = sum * x + coefficients[i];
  return sum;
}

// exp(x + tail), |tail| far below |x|.
double exp_of_pair(double x, double tail) {
  if (!(x < 710.0)) return x != x ? kNaN : kInfinity;
  if (x < -746.0) return 0.0;
  // Taylor from r^13 down to r^2: for |r| <= ln(2)/2 the first term left out is below 4e-18.
  static constexpr double kTerms[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                      1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                      1.0 / 120,        1.0 / 24,        1.0 / 6,        1.0 / 2};
  const int64_t k = nearest(x * kLog2E);
  const double high = x - double(k) * kLn2High;
  const double low = tail - double(k) * kLn2Low;
  const double r = high + low;
  const double beyond_linear = r * r * horner(r, kTerms, 12) + ((high - r) + low);
  const double value = 1.0 + (r + beyond_linear);
  // Two factors, because 2^k alone may be subnormal or infinite where the result is not.
  const int64_t half = k / 2;
  return value * power_of_two(half) * power_of_two(k - half);
}

// log(x) for 0 < x < infinity, to about 2^-66 of its value.
Pair log_pair(double x) {
  int64_t k = 0;
  if (x < 0x1p-1022) {  // subnormal
    x *= 0x1p54;
    k = -54;
  }
  // x = 2^k m with m in [sqrt(1/2), sqrt(2)).
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  k += int64_t(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m >= 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++k;
  }
  // log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172. 2s as a pair; the rest, a hundredth of it, as a
  // double.
  static constexpr double kTerms[] = {2.0 / 25, 2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15,
                                      2.0 / 13, 2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
  const double numerator = m - 1.0;  // exact
  const Pair denominator = exact_sum(m, 1.0);
  const double s = numerator / denominator.high;
  const Pair back = exact_product(s, denominator.high);
  const double s_low = (((numerator - back.high) - back.low) - s * denominator.low) / denominator.high;
  const double z = s * s;
  const double rest = s * z * horner(z, kTerms, 12);
  const Pair sum = exact_sum(double(k) * kLn2High, 2.0 * s);
  const double low = sum.low + (2.0 * s_low + (rest + double(k) * kLn2Low));
  const double high = sum.high + low;
  return {high, (sum.high - high) + low};
}

}  // namespace

double exp(double x) { return exp_of_pair(x, 0.0); }

double log(double x) {
  if (!(x > 0.0)) return x == 0.0 ? -kInfinity : kNaN;
  if (x == kInfinity) return kInfinity;
  return log_pair(x).high;
}

double pow(double base, double exponent) {
  if (exponent == 0.0) return 1.0;
  if (!(base >= 0.0) || exponent != exponent) return kNaN;
  if (base == 1.0) return 1.0;
  if (base == 0.0 || base == kInfinity) return (base == 0.0) == (exponent > 0.0) ? 0.0 : kInfinity;
  const Pair logarithm = log_pair(base);
  const double rough = exponent * logarithm.high;
  if (!(rough > -746.0 && rough < 710.0)) return rough < 0.0 ? 0.0 : kInfinity;
  const Pair product = exact_product(exponent, logarithm.high);
  return exp_of_pair(product.high, product.low + exponent * logarithm.low);
}

SinCos sin_cos(double radians) {
  if (!(radians >= -kLargestAngle && radians <= kLargestAngle)) return {kNaN, kNaN};
  // radians = n pi/2 + r + r_low, |r| <= pi/4 and a little.
  const int64_t n = nearest(radians * kTwoOverPi);
  const Pair first = exact_sum(radians - double(n) * kHalfPi1, -(double(n) * kHalfPi2));
  const double r = first.high + (first.low - double(n) * kHalfPi3);
  const double r_low = (first.high - r) + (first.low - double(n) * kHalfPi3);

  // Taylor, highest power first; the first terms left out, r^19/19! and r^18/18!, are below 3e-18.
  static constexpr double kSine[] = {
      1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
      1.0 / 362880,          -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
  static constexpr double kCosine[] = {
      1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800,
      1.0 / 40320,          -1.0 / 720,         1.0 / 24};
  const double z = r * r;
  const double sine = r + (r * z * horner(z, kSine, 8) + r_low);
  const double cosine = 1.0 - (0.5 * z - (z * z * horner(z, kCosine, 7) - r * r_low));
  switch (n & 3) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

}  // namespace kveval::det
