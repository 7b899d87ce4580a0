// Any bytes are a safetensors file or an Error{bad_file}.
#include <cstdlib>
#include <optional>
#include <vector>

#include "engine/model/safetensors.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/may_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace kveval;
  const fuzz::InputFile input(bytes, size);
  const std::string path = input.path();
  std::optional<TensorSet> tensors;
  fuzz::within_budget(size, [&] { fuzz::may_refuse([&] { tensors = read_safetensors(path); }); });
  if (!tensors) return 0;
  size_t data = 0;
  for (const Tensor& tensor : tensors->all()) {
    std::vector<float> row(size_t(cols(tensor)));
    dequantize_row(tensor, rows(tensor) - 1, row.data());
    data += tensor.data.size();
  }
  if (data > size) std::abort();
  return 0;
}
