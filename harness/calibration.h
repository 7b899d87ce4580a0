// The text that Engine::resolve measures static scales on.
#pragma once

#include "engine/text/tokenizer.h"

namespace kveval {

// Always the same 2,048 tokens (BOS included where there is one) for the same tokenizer: filler sentences
// from a fixed seed, no needles, so that a profile's frozen scales do not depend on the run that asked for
// them.
Tokens calibration_tokens(const Tokenizer& tokenizer);

}  // namespace kveval
