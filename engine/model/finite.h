// Weights that are numbers. One NaN can pass through a forward pass unnoticed: a maximum skips it, so a token
// whose logit it is just never wins, and the answers look like answers.
#pragma once

#include <string>

#include "engine/model/tensor.h"

namespace kveval {

// Whether no float value, and no half of a quantized block (block_quants.h), is NaN or infinite.
bool is_finite(const Tensor& tensor);

// Throws Error{bad_file} naming `path` and the first tensor with a value that is no finite number. Reads
// every weight: about a second for 10 GB that are in memory.
void check_finite(const std::string& path, const TensorSet& tensors);

}  // namespace kveval
