// safetensors: one file, or several with an index, as Hugging Face model directories hold them.
//
// The header is checked as the reference implementation checks it: at most 100 MB of JSON, every entry with
// exactly dtype, shape and data_offsets, sizes equal to shape times dtype, data contiguous from 0 to the end
// of the file. On top: no key twice, no nesting beyond what the format has, no string above 64 KiB, no empty
// tensor. Opening allocates less than four times the files' size (plus under a megabyte).
#pragma once

#include <string>

#include "engine/model/tensor.h"

namespace kveval {

// `path` is a directory with model.safetensors or model.safetensors.index.json, or either file. The tensors
// of an index are exactly those it lists, in files of its own directory. Weights are F32, F16 or BF16; any
// other dtype is refused by name. Throws Error{bad_file} naming file and tensor or field.
TensorSet read_safetensors(const std::string& path);

}  // namespace kveval
