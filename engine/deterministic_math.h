// exp, log, pow, sin and cos that give the same bits on every machine: nothing but IEEE double + - * / and
// bit operations in a fixed order. A libm picks fused variants at run time, so its last bit depends on the
// CPU.
#pragma once

namespace kveval::det {

struct SinCos {
  double sin, cos;
};

// All within 1e-15 of the exact value: relative for exp, log and pow, absolute for sin_cos. Arguments and
// results outside the range of double behave as in C: exp(1000) is infinity, log(0) is -infinity, log(-1) is
// NaN.
double exp(double x);
double log(double x);
double pow(double base, double exponent);  // base >= 0, NaN otherwise; pow(x, 0) is 1
inline constexpr double kLargestAngle = 0x1p23;
SinCos sin_cos(double radians);  // NaN beyond +-kLargestAngle: the reduction would no longer be exact

}  // namespace kveval::det
