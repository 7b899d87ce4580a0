// usage: write_seeds FOLDER    one valid file and every malformed fixture of each format, under FOLDER/FORMAT
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/engine/malformed_gguf.h"
#include "tests/engine/malformed_safetensors.h"

namespace {

// Long fixtures say nothing to a fuzzer that short ones do not.
constexpr size_t kLongest = 8192;

void write(const std::filesystem::path& folder, std::vector<kveval::Malformed> files,
           const std::string& valid) {
  std::filesystem::create_directories(folder);
  files.push_back({"valid", valid, ""});
  for (const kveval::Malformed& file : files)
    if (file.bytes.size() <= kLongest) std::ofstream(folder / file.name, std::ios::binary) << file.bytes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: write_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  write(folder / "gguf", kveval::malformed_gguf_files(), kveval::valid_gguf().file());
  write(folder / "safetensors", kveval::malformed_safetensors_files(), kveval::valid_safetensors());
}
