// A Hugging Face directory small enough for a test to write, and the model that reading it must give.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/weights.h"
#include "tests/engine/temporary_file.h"

namespace kveval {

struct StoredTensor {
  std::string dtype;  // "F32", "F16", "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};
StoredTensor stored(const std::vector<float>& values, std::vector<int64_t> shape,
                    const std::string& dtype = "F32");
std::string safetensors_of(const std::map<std::string, StoredTensor>& tensors);

struct HfDirectory {
  Model model;  // no tokenizer
  nlohmann::json config, tokenizer, tokenizer_config;
  std::map<std::string, StoredTensor> tensors;

  // Writes every file, weights into `shards` of them, and returns the folder's path.
  std::string write(const TemporaryFolder& folder, int shards = 1) const;
};

// model_type: llama, mistral, qwen2, qwen3, gemma3_text or gemma3. Two layers of random weights (Gemma's
// first one has a window of 16), 256 positions, 270 rows for a tokenizer of 261 pieces.
HfDirectory hf_directory(const std::string& model_type, uint64_t seed = 1);

}  // namespace kveval
