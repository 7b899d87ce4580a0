#include "engine/model/hf_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>

#include "engine/cpu/cpu_engine.h"
#include "engine/error.h"
#include "tests/engine/hf_directory.h"

namespace kveval {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kTypes[] = {"llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gemma3"};

Model read(const HfDirectory& directory, int shards = 1) {
  const TemporaryFolder folder;
  return read_hf_model(directory.write(folder, shards));
}

// What reading says is wrong; it begins with a path below the folder, which is left out.
std::string error_of(const std::function<void()>& read_it, const std::string& path) {
  try {
    read_it();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_THAT(error.what(), StartsWith(path));
    return std::string(error.what()).substr(std::min(path.size(), std::string(error.what()).size()));
  }
  return "no error";
}
std::string error_of(const HfDirectory& directory) {
  const TemporaryFolder folder;
  const std::string path = directory.write(folder);
  return error_of([&] { read_hf_model(path); }, std::filesystem::canonical(path).string());
}

// Logits of the last 4 of 40 tokens.
std::vector<std::vector<float>> logits_of(const Model& model, const char* profile = "f32") {
  const auto engine = make_cpu_engine(std::make_shared<Model>(model), {.threads = 1});
  PromptGroup group;
  for (int i = 0; i < 35; ++i) group.prefix.tokens.push_back((i * 37 + 5) % 250);
  group.branches = {{{{{7}, {}, Ask::score, {1, 2, 3, 4}}}}};
  std::vector<std::vector<float>> rows;
  Events events;
  events.on_logits = [&](size_t, size_t, size_t, std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
  };
  engine->run(group, {}, engine->resolve(parse_profile(profile), {}), events);
  return rows;
}

TEST(HfModel, EveryArchitectureIsReadExactly) {
  for (const char* type : kTypes) {
    SCOPED_TRACE(type);
    const HfDirectory directory = hf_directory(type);
    const Model model = read(directory);
    EXPECT_EQ(model.config.architecture, directory.model.config.architecture);
    EXPECT_EQ(model.hash, directory.model.hash) << "configuration or weights differ";
    EXPECT_EQ(logits_of(model), logits_of(directory.model));
    EXPECT_TRUE(model.cache_scales.k.empty());
    EXPECT_FALSE(model.chat_error);
    EXPECT_EQ(model.chat.family, "plain");
    EXPECT_EQ(model.tokenizer->vocabulary_size(), 270);
    EXPECT_EQ(model.tokenizer->encode("the th"), (Tokens{257, ' ', 256}));
    EXPECT_EQ(model.tokenizer->eos(), Token(259));
    EXPECT_EQ(read(directory, 3).hash, directory.model.hash) << "in three files";
  }
}

TEST(HfModel, TheNameIsTheAbsoluteDirectory) {
  const TemporaryFolder folder;
  const std::string path = std::filesystem::canonical(hf_directory("llama").write(folder)).string();
  EXPECT_EQ(read_hf_model(path).name, path);
  EXPECT_EQ(read_hf_model(path + "/").name, path);
  EXPECT_EQ(read_hf_model(std::filesystem::relative(path).string()).name, path);
}

TEST(HfModel, SixteenBitWeightsStayInTheFile) {
  for (const char* dtype : {"F16", "BF16"}) {
    HfDirectory directory = hf_directory("qwen2");
    for (auto& [name, tensor] : directory.tensors) {
      std::vector<float> values(tensor.bytes.size() / sizeof(float));
      std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      tensor = stored(values, tensor.shape, dtype);
    }
    const Model model = read(directory);
    const Tensor& q = model.weights.layers[1].q;
    EXPECT_EQ(info_of(q.type).name, dtype);
    const std::vector<float> values = floats_of(q), expected = floats_of(directory.model.weights.layers[1].q);
    ASSERT_EQ(values.size(), expected.size());
    const float relative = std::string_view(dtype) == "F16" ? 0x1p-11f : 0x1p-8f;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], expected[i], std::fabs(expected[i]) * relative + 1e-7f);
  }
}

TEST(HfModel, Heads) {
  // Tied where the class ties, whatever a stored copy is called.
  HfDirectory gemma = hf_directory("gemma3_text");
  EXPECT_TRUE(has_tied_head(read(gemma).weights));
  gemma.tensors["lm_head.weight"] = gemma.tensors["model.embed_tokens.weight"];
  EXPECT_TRUE(has_tied_head(read(gemma).weights));
  gemma.tensors["lm_head.weight"].bytes[0] ^= 1;
  EXPECT_THAT(error_of(gemma), HasSubstr("tensor 'lm_head.weight' differs from the embedding"));
  gemma.config["tie_word_embeddings"] = false;
  EXPECT_FALSE(has_tied_head(read(gemma).weights));

  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    HfDirectory directory = hf_directory(type);
    EXPECT_FALSE(has_tied_head(read(directory).weights));
    directory.tensors.erase("lm_head.weight");
    EXPECT_THAT(error_of(directory), HasSubstr("tensor 'lm_head.weight' is missing")) << type;
    directory.config["tie_word_embeddings"] = true;
    EXPECT_TRUE(has_tied_head(read(directory).weights));
  }
}

TEST(HfModel, MultimodalGemmaHasTwoLayoutsAndAVisionTower) {
  HfDirectory directory = hf_directory("gemma3");
  directory.config["text_config"]["tie_word_embeddings"] = true;
  directory.tensors["vision_tower.a.weight"] = stored({1}, {1});
  directory.tensors["multi_modal_projector.b"] = stored({1}, {1});
  EXPECT_EQ(read(directory).hash, directory.model.hash);

  HfDirectory later = hf_directory("gemma3");
  later.tensors.clear();
  for (const auto& [name, tensor] : directory.tensors) {
    const std::string old = "language_model.model.";
    later.tensors[name.starts_with(old) ? "model.language_model." + name.substr(old.size())
                                        : "model." + name] = tensor;
  }
  EXPECT_EQ(read(later).hash, directory.model.hash);

  HfDirectory text = hf_directory("gemma3_text");
  text.tensors["vision_tower.a.weight"] = stored({1}, {1});
  EXPECT_THAT(error_of(text), HasSubstr("tensor 'vision_tower.a.weight' is not part of a gemma3 model"));
}

TEST(HfModel, TensorsThatDoNotFitAreNamed) {
  const auto error_with = [](const std::function<void(std::map<std::string, StoredTensor>&)>& change,
                             const char* type = "llama") {
    HfDirectory directory = hf_directory(type);
    change(directory.tensors);
    return error_of(directory);
  };
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_EQ(error_with([&](auto& tensors) { tensors.erase(q); }), fmt::format(": tensor '{}' is missing", q));
  EXPECT_EQ(error_with([&](auto& tensors) {
              tensors[q] = stored(std::vector<float>(128), {64, 2});
            }),
            fmt::format(": tensor '{}' is [64, 2] where the configuration needs [128, 64]", q));
  EXPECT_EQ(error_with([&](auto& tensors) {
              tensors["model.norm.weight"].shape = {1, 64};
            }),
            ": tensor 'model.norm.weight' is [1, 64] where the configuration needs [64]");
  // Biases and norms that the architecture does not have would change its result.
  for (const char* name : {"self_attn.o_proj.bias", "self_attn.q_proj.bias", "self_attn.q_norm.weight",
                           "mlp.gate_proj.bias", "self_attn.sinks"})
    EXPECT_THAT(
        error_with([&](auto& tensors) { tensors[std::string("model.layers.0.") + name] = stored({1}, {1}); }),
        HasSubstr(fmt::format("tensor 'model.layers.0.{}' is not part of a llama model", name)));
  EXPECT_THAT(
      error_with([&](auto& tensors) { tensors["model.layers.0.self_attn.o_proj.bias"] = stored({1}, {1}); },
                 "qwen2"),
      HasSubstr("not part of a qwen2 model"));
  EXPECT_THAT(
      error_with([&](auto& tensors) { tensors.erase("model.layers.1.self_attn.k_proj.bias"); }, "qwen2"),
      HasSubstr("'model.layers.1.self_attn.k_proj.bias' is missing"));
  EXPECT_EQ(error_with([&](auto& tensors) {
              tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = stored({1, 2}, {2});
            }),
            "no error")
      << "a table that older versions stored";
  EXPECT_THAT(
      error_with([&](auto& tensors) { tensors["model.layers.2.mlp.up_proj.weight"] = stored({1}, {1}); }),
      HasSubstr("'model.layers.2.mlp.up_proj.weight' is not part"))
      << "more layers than config.json says";
}

// ------------------------------------------------------------------------------------------------ FP8 scales

struct Names {
  const char *k, *v;
};
constexpr Names kScaleNames[] = {{"self_attn.k_scale", "self_attn.v_scale"},
                                 {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"},
                                 {"self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"},
                                 {"self_attn.kv_scale", "self_attn.kv_scale"}};

HfDirectory with_scales(const Names& names, const std::vector<int64_t>& shape = {}) {
  HfDirectory directory = hf_directory("llama");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    directory.tensors[at + names.v] = stored({0.5f + float(layer)}, shape);
    if (std::string_view(names.k) != names.v)
      directory.tensors[at + names.k] = stored({0.25f + float(layer)}, shape);
  }
  return directory;
}

TEST(HfModel, CacheScalesUnderEveryName) {
  for (const Names& names : kScaleNames) {
    SCOPED_TRACE(names.k);
    const bool one = std::string_view(names.k) == names.v;
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {1, 1, 1}}) {
      const HfDirectory directory = with_scales(names, shape);
      const Model model = read(directory);
      EXPECT_THAT(model.cache_scales.k, one ? ElementsAre(0.5f, 1.5f) : ElementsAre(0.25f, 1.25f));
      EXPECT_THAT(model.cache_scales.v, ElementsAre(0.5f, 1.5f));
      EXPECT_EQ(model.cache_scales.names, one ? names.k : fmt::format("{}, {}", names.k, names.v));
      EXPECT_EQ(model.hash, directory.model.hash) << "scales belong to the profile";
    }
    HfDirectory partial = with_scales(names);
    partial.tensors.erase(std::string("model.layers.1.") + names.v);
    EXPECT_THAT(error_of(partial), HasSubstr(fmt::format("tensor 'model.layers.1.{}' is missing", names.v)));
    for (const Names& other : kScaleNames) {
      if (names.k == other.k) continue;
      HfDirectory mixed = with_scales(names);
      mixed.tensors[std::string("model.layers.0.") + other.k] = stored({1}, {});
      EXPECT_THAT(error_of(mixed),
                  AllOf(HasSubstr("has cache scales as "), HasSubstr(names.k), HasSubstr(other.k)));
    }
  }
}

TEST(HfModel, CacheScalesThatMeanSomethingElse) {
  const auto error_with = [](const StoredTensor& scale, int kv_heads = 1) {
    HfDirectory directory = with_scales(kScaleNames[0]);
    if (kv_heads == 2) {
      directory.config["num_key_value_heads"] = 2;
      for (const char* name : {"k", "v"})
        for (int layer = 0; layer < 2; ++layer)
          directory.tensors[fmt::format("model.layers.{}.self_attn.{}_proj.weight", layer, name)] =
              stored(std::vector<float>(128 * 64), {128, 64});
    }
    directory.tensors["model.layers.1.self_attn.v_scale"] = scale;
    return error_of(directory);
  };
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")})
    EXPECT_THAT(error_with(stored({bad}, {})),
                HasSubstr("tensor 'model.layers.1.self_attn.v_scale' holds the scale"));
  EXPECT_THAT(error_with(stored({1, 1}, {2})), HasSubstr("has the shape [2], where one scale is expected"));
  EXPECT_EQ(error_with(stored({0.1f, 0.1f}, {2, 1, 1}), 2), "no error") << "per head, but all equal";
  EXPECT_THAT(error_with(stored({0.1f, 0.2f}, {2, 1, 1}), 2),
              HasSubstr("'model.layers.1.self_attn.v_scale' has a scale for each of 2 heads"));

  for (const char* name : {"self_attn.q_scale", "self_attn.prob_scale", "mlp.up_proj.weight_scale",
                           "self_attn.q_proj.input_scale", "self_attn.qkv_proj.k_scale"}) {
    HfDirectory directory = hf_directory("llama");
    directory.tensors[std::string("model.layers.0.") + name] = stored({1}, {});
    EXPECT_THAT(
        error_of(directory),
        HasSubstr(fmt::format("tensor 'model.layers.0.{}' is a scale that kveval does not use", name)));
  }
}

TEST(HfModel, AProfileUsesTheCheckpointsScales) {
  const Model model = read(with_scales(kScaleNames[1]));
  const auto engine = make_cpu_engine(std::make_shared<Model>(model), {.threads = 1});
  const Profile profile = engine->resolve(parse_profile("e4m3,scale=checkpoint"), {});
  EXPECT_THAT(profile.k.static_scales, ElementsAre(0.25f, 1.25f));
  EXPECT_THAT(profile.v.static_scales, ElementsAre(0.5f, 1.5f));
  EXPECT_NE(logits_of(model, "e4m3,scale=checkpoint"), logits_of(model, "e4m3"));
}

// ------------------------------------------------------------------------------------- tokenizer and
// template

TEST(HfModel, TokensThatBeginAndEnd) {
  const auto model_with = [](const json& config, const json& tokenizer_config,
                             const char* generation = nullptr) {
    HfDirectory directory = hf_directory("llama");
    directory.config.update(config);
    directory.tokenizer_config = tokenizer_config;
    const TemporaryFolder folder;
    const std::string path = directory.write(folder);
    if (generation) folder.write("generation_config.json", generation);
    return read_hf_model(path);
  };
  const auto eos = [&](const json& config, const json& tokenizer_config, const char* generation = nullptr) {
    return model_with(config, tokenizer_config, generation).tokenizer->eos();
  };
  const json named = {{"eos_token", "</s>"}}, none = json::object();
  EXPECT_EQ(eos({{"eos_token_id", nullptr}}, none), std::nullopt);
  EXPECT_EQ(eos({{"eos_token_id", 258}}, none), Token(258));
  EXPECT_EQ(eos({{"eos_token_id", {260, 258}}}, none), Token(260));
  EXPECT_EQ(eos({{"eos_token_id", {260, 259}}}, named), Token(259)) << "the tokenizer's, one of several";
  EXPECT_EQ(eos({{"eos_token_id", 258}}, named), Token(258))
      << "generate() would not stop at the tokenizer's";
  EXPECT_EQ(eos({{"eos_token_id", nullptr}}, named), Token(259));
  EXPECT_EQ(eos({{"eos_token_id", 258}}, named, R"({"eos_token_id": [259, 260], "temperature": 0.6})"),
            Token(259));
  EXPECT_EQ(eos({{"eos_token_id", 258}}, named, R"({"temperature": 0.6})"), Token(258));
  EXPECT_EQ(model_with(none, {{"bos_token", "<s>"}}).tokenizer->bos(), std::nullopt) << "nothing prepends it";
}

TEST(HfModel, ATokenizerThatPrependsTakesItsOwnBos) {
  HfDirectory directory = hf_directory("llama");
  directory.tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  EXPECT_EQ(read(directory).tokenizer->bos(), Token(258));
}

TEST(HfModel, ChatTemplates) {
  const std::string chatml =
      "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
      "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif "
      "%}";
  HfDirectory directory = hf_directory("llama");
  directory.tokenizer_config["chat_template"] = chatml;
  EXPECT_EQ(read(directory).chat.family, "chatml");
  directory.tokenizer_config["chat_template"] = {{{"name", "tools"}, {"template", "?"}},
                                                 {{"name", "default"}, {"template", chatml}}};
  EXPECT_EQ(read(directory).chat.family, "chatml");
  directory.tokenizer_config["chat_template"] = "{{ messages }}";
  const Model unknown = read(directory);
  EXPECT_EQ(unknown.chat.family, "plain");
  ASSERT_TRUE(unknown.chat_error);
  EXPECT_THAT(unknown.chat_error->what(), HasSubstr("is of no family that kveval knows"));
  const TemporaryFolder folder;
  const std::string path = directory.write(folder);
  folder.write("chat_template.jinja", chatml);
  EXPECT_EQ(read_hf_model(path).chat.family, "chatml") << "the file goes before the key";
}

TEST(HfModel, PiecesAndRows) {
  HfDirectory directory = hf_directory("llama");
  const auto add = [&](const char* piece, int id, bool special) {
    directory.tokenizer["added_tokens"].push_back({{"id", id},
                                                   {"content", piece},
                                                   {"single_word", false},
                                                   {"lstrip", false},
                                                   {"rstrip", false},
                                                   {"normalized", false},
                                                   {"special", special}});
  };
  for (int id = 261; id < 271; ++id) add(fmt::format("<{}>", id).c_str(), id, true);
  EXPECT_EQ(read(directory).tokenizer->vocabulary_size(), 270) << "a special token without a row is left out";
  add("<271>", 271, false);
  EXPECT_EQ(error_of(directory),
            "/tokenizer.json: the piece '<271>' has the id 271, but the model has 270 rows");
}

TEST(HfModel, FilesThatAreMissingOrMalformed) {
  const auto error_without = [](const char* file) {
    const TemporaryFolder folder;
    const std::string path = std::filesystem::canonical(hf_directory("llama").write(folder)).string();
    std::filesystem::remove(std::filesystem::path(path) / file);
    return error_of([&] { read_hf_model(path); }, path);
  };
  EXPECT_EQ(error_without("config.json"), ": has no config.json");
  EXPECT_EQ(error_without("model.safetensors"),
            ": has neither model.safetensors nor model.safetensors.index.json");
  EXPECT_EQ(error_without("tokenizer.json"), ": has no tokenizer.json");
  EXPECT_EQ(error_without("tokenizer_config.json"), "no error");
  EXPECT_EQ(error_of([] { read_hf_model("/nowhere"); }, ""), "/nowhere: is no directory");

  const auto error_with = [](const char* file, const std::string& text) {
    const TemporaryFolder folder;
    const std::string path = std::filesystem::canonical(hf_directory("llama").write(folder)).string();
    folder.write(file, text);
    return error_of([&] { read_hf_model(path); }, path);
  };
  for (const char* file : {"config.json", "generation_config.json"}) {
    const std::string at = std::string("/") + file + ": ";
    EXPECT_EQ(error_with(file, "{\"a\": 1, \"a\": 2}"), at + "has the member 'a' twice");
    EXPECT_EQ(error_with(file, "{\"a\": 1"), at + "is malformed JSON at byte 8");
    EXPECT_EQ(error_with(file, "[]"), at + "is no JSON object");
    EXPECT_EQ(error_with(file, "{\"a\": " + std::string(100, '[')), at + "has more than 64 levels");
  }
  EXPECT_EQ(error_with("tokenizer.json", "{}"), ": tokenizer.json: there is no model");
  EXPECT_THAT(error_with("tokenizer_config.json", R"({"eos_token": 1})"),
              HasSubstr(": tokenizer_config.json: "));
  EXPECT_EQ(error_with("tokenizer_config.json", R"({"eos_token": "<eos>"})"),
            "/tokenizer_config.json: 'eos_token' is '<eos>', which is no piece");
  EXPECT_THAT(error_with("model.safetensors", "12345678"), HasSubstr("/model.safetensors: "));
}

}  // namespace
}  // namespace kveval
