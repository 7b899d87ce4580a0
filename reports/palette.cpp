#include "reports/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace kveval {
namespace {

// In whole steps of 1 / (100 x segments), so that no rounding mode can change a colour.
uint8_t mix(int from, int to, int part, int whole) {
  return static_cast<uint8_t>((from * (whole - part) + to * part + whole / 2) / whole);
}

Rgb mix(Rgb from, Rgb to, int part, int whole) {
  return {mix(from.r, to.r, part, whole), mix(from.g, to.g, part, whole), mix(from.b, to.b, part, whole)};
}

// x^0.2 by Newton's method: plain arithmetic gives every machine the same text colour, pow() need not.
double fifth_root(double x) {
  if (x <= 0) return 0;
  double y = 1;
  for (int i = 0; i < 60; ++i) y = (4 * y + x / (y * y * y * y)) / 5;
  return y;
}

double luminance(Rgb colour) {
  const auto linear = [](uint8_t channel) {
    const double c = channel / 255.0;
    if (c <= 0.04045) return c / 12.92;
    const double base = (c + 0.055) / 1.055;
    const double root = fifth_root(base);
    return base * base * root * root;  // base^2.4
  };
  return 0.2126 * linear(colour.r) + 0.7152 * linear(colour.g) + 0.0722 * linear(colour.b);
}

}  // namespace

Rgb cividis(int percent) {
  constexpr std::array<Rgb, 10> kStops{{{0x00, 0x20, 0x4d},
                                        {0x00, 0x33, 0x6f},
                                        {0x39, 0x48, 0x6b},
                                        {0x57, 0x5c, 0x6d},
                                        {0x70, 0x71, 0x73},
                                        {0x8a, 0x87, 0x79},
                                        {0xa6, 0x9d, 0x75},
                                        {0xc4, 0xb5, 0x6c},
                                        {0xe4, 0xcf, 0x5b},
                                        {0xff, 0xea, 0x46}}};
  constexpr int kSegments = static_cast<int>(kStops.size()) - 1;
  const int position = std::clamp(percent, 0, 100) * kSegments;  // in hundredths of a segment
  const int segment = std::min(position / 100, kSegments - 1);
  const auto at = static_cast<size_t>(segment);
  return mix(kStops[at], kStops[at + 1], position - 100 * segment, 100);
}

Rgb difference_colour(int percent) {
  constexpr Rgb kMiddle{0xf7, 0xf7, 0xf7}, kWorse{0xd5, 0x5e, 0x00}, kBetter{0x00, 0x72, 0xb2};
  const int p = std::clamp(percent, -100, 100);
  return p < 0 ? mix(kMiddle, kWorse, -p, 100) : mix(kMiddle, kBetter, p, 100);
}

double contrast(Rgb a, Rgb b) {
  const double la = luminance(a) + 0.05;
  const double lb = luminance(b) + 0.05;
  return std::max(la, lb) / std::min(la, lb);
}

Rgb text_on(Rgb background) {
  return contrast(background, kWhite) > contrast(background, kBlack) ? kWhite : kBlack;
}

std::string css(Rgb colour) { return fmt::format("#{:02x}{:02x}{:02x}", colour.r, colour.g, colour.b); }

}  // namespace kveval
