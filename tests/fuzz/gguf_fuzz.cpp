// Any bytes are a GGUF file or an Error{bad_file}; and then every key reads, with every type, as a value or
// an Error.
#include <cstdlib>
#include <optional>
#include <vector>

#include "engine/model/gguf.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/may_refuse.h"

namespace {

using namespace kveval;
using fuzz::may_refuse;

void read_all(Gguf& file) {
  GgufMetadata& m = file.metadata;
  for (const std::string_view key : m.keys()) {
    may_refuse([&] { m.count(key, 1 << 20); });
    may_refuse([&] { m.number(key); });
    may_refuse([&] { m.flag(key); });
    may_refuse([&] { m.text(key); });
    may_refuse([&] { m.texts(key); });
    may_refuse([&] { m.numbers(key); });
    may_refuse([&] { m.flags(key); });
    may_refuse([&] { m.integers(key, -1000, INT64_MAX); });
    may_refuse([&] { m.counts_per_layer(key, 2, UINT64_MAX); });
  }
  if (!m.unread().empty()) std::abort();
  for (const Tensor& tensor : file.tensors.all()) {
    std::vector<float> row(size_t(cols(tensor)));
    dequantize_row(tensor, 0, row.data());
    dequantize_row(tensor, rows(tensor) - 1, row.data());
    if (file.tensors.find(tensor.name) != &tensor) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const fuzz::InputFile input(bytes, size);
  may_refuse([&] {
    std::optional<Gguf> file;
    const std::string path = input.path();
    fuzz::within_budget(size, [&] { may_refuse([&] { file.emplace(read_gguf(path)); }); });
    if (file) read_all(*file);
  });
  return 0;
}
