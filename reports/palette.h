// Colours of the heat maps: readable in grey and with colour-blind eyes.
#pragma once

#include <cstdint>
#include <string>

namespace kveval {

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
  bool operator==(const Rgb&) const = default;
};

inline constexpr Rgb kBlack{0, 0, 0};
inline constexpr Rgb kWhite{255, 255, 255};

// Cividis (Nunez, Anderton and Renslow, 2018): lightness rises evenly from dark blue (0) to yellow (100), so
// a printed grey page still orders the cells. The red-amber-green of other needle maps prints 50 % and 100 %
// the same grey.
Rgb cividis(int percent);

// Orange (-100) through white (0) to blue (100).
Rgb difference_colour(int percent);

double contrast(Rgb a, Rgb b);  // WCAG 2 contrast ratio, 1..21

// Black or white, whichever reads better: at least 4.5 : 1 on every colour.
Rgb text_on(Rgb background);

std::string css(Rgb colour);  // "#00204d"

}  // namespace kveval
