#include "engine/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "engine/error.h"
#include "engine/random.h"
#include "tests/engine/allocation_count.h"
#include "tests/engine/malformed_gguf.h"
#include "tests/engine/refusal.h"
#include "tests/engine/temporary_file.h"

namespace kveval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Gguf read_bytes(const TemporaryFolder& folder, const std::string& bytes) {
  return read_gguf(folder.write("model.gguf", bytes));
}

TEST(Gguf, ReadsEveryKindOfValue) {
  const TemporaryFolder folder;
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter w = valid_gguf();
    w.version = version;
    Gguf file = read_bytes(folder, w.file());
    GgufMetadata& m = file.metadata;
    EXPECT_EQ(m.need_text("general.architecture"), "llama");
    EXPECT_EQ(m.need_count("llama.block_count", 1024), 2u);
    EXPECT_EQ(m.count("a.u8", 255), 200u);
    EXPECT_EQ(m.count("a.u16", 65535), 60000u);
    EXPECT_EQ(m.count("a.u64", uint64_t(1) << 40), uint64_t(1) << 40);
    EXPECT_EQ(m.number("a.f32"), 1.5);
    EXPECT_EQ(m.number("a.f64"), 0.1);
    EXPECT_EQ(m.flag("a.true"), true);
    EXPECT_EQ(m.count("absent", 9), std::nullopt);
    EXPECT_EQ(m.text("absent"), std::nullopt);
    EXPECT_EQ(m.texts("absent"), std::nullopt);
    EXPECT_THAT(*m.texts("tokenizer.ggml.tokens"), ElementsAre("<s>", "", "\xe2\x96\x81the"));
    EXPECT_THAT(*m.numbers("tokenizer.ggml.scores"), ElementsAre(0.0f, -1.0f, -2.0f));
    EXPECT_THAT(*m.integers("llama.attention.head_count_kv", 0, 9), ElementsAre(3, 4));
    EXPECT_THAT(*m.flags("llama.attention.sliding_window_pattern"), ElementsAre(true, false));
    EXPECT_THAT(*m.counts_per_layer("llama.attention.head_count_kv", 2, 9), ElementsAre(3u, 4u));
    EXPECT_THAT(*m.counts_per_layer("a.u8", 3, 255), ElementsAre(200u, 200u, 200u));
    EXPECT_THAT(m.unread(), ElementsAre("a.i16", "a.i32", "a.i64", "a.i8", "general.alignment"));
    EXPECT_TRUE(m.is_array("tokenizer.ggml.scores"));
    EXPECT_FALSE(m.is_array("a.u8"));
    EXPECT_EQ(m.keys().size(), 17u);
  }
}

TEST(Gguf, TypesAndBoundsOfValuesAreChecked) {
  const TemporaryFolder folder;
  GgufWriter w = valid_gguf();
  w.entry("nan", 6, raw(std::nanf(""))).entry("inf", 12, raw(HUGE_VAL)).u32("gemma3.block_count", 513);
  w.array("scores", 6, 2, raw(1.0f) + raw(HUGE_VALF)).array("ids", 5, 2, raw(int32_t(1)) + raw(int32_t(-2)));
  w.entry("top", 10, raw(~uint64_t(0)));
  GgufMetadata m = read_bytes(folder, w.file()).metadata;
  const auto says = [&](const std::string& text, auto read) {
    EXPECT_THAT(refusal(read), testing::AllOf(HasSubstr("model.gguf: "), HasSubstr(text)));
  };
  says("key 'general.architecture' is a text where an integer is needed",
       [&] { m.count("general.architecture", 9); });
  says("key 'a.u8' is an integer where a text is needed", [&] { m.text("a.u8"); });
  says("key 'a.u8' is an integer where a float is needed", [&] { m.number("a.u8"); });
  says("key 'a.u8' is an integer where an array is needed", [&] { m.numbers("a.u8"); });
  says("key 'a.u8' is an integer where a boolean is needed", [&] { m.flag("a.u8"); });
  says("key 'a.true' is a boolean where an integer is needed", [&] { m.count("a.true", 9); });
  says("key 'a.i32' has the value -7, outside 0 to 9", [&] { m.count("a.i32", 9); });
  says("key 'top' has the value 18446744073709551615", [&] { m.count("top", ~uint64_t(0)); });
  // A layer count beyond what a fixed table holds overran one (gemma3, block_count above 512).
  says("key 'gemma3.block_count' has the value 513, outside 0 to 512",
       [&] { m.count("gemma3.block_count", 512); });
  says("key 'nan' is not finite", [&] { m.number("nan"); });
  says("key 'inf' is not finite", [&] { m.number("inf"); });
  says("element 1 of key 'scores' is not finite", [&] { m.numbers("scores"); });
  says("key 'ids' has the value -2, outside 0 to 5", [&] { m.integers("ids", 0, 5); });
  // Scores and token types read through a pointer of the wrong type (llama.cpp #26690).
  says("key 'tokenizer.ggml.tokens' is an array whose element is a text where a 32-bit float is needed",
       [&] { m.numbers("tokenizer.ggml.tokens"); });
  says("key 'tokenizer.ggml.scores' is an array whose element is a float where an integer is needed",
       [&] { m.integers("tokenizer.ggml.scores", 0, 6); });
  says("key 'tokenizer.ggml.scores' is an array whose element is a float where a text is needed",
       [&] { m.texts("tokenizer.ggml.scores"); });
  says("key 'tokenizer.ggml.scores' is an array whose element is a float where a boolean is needed",
       [&] { m.flags("tokenizer.ggml.scores"); });
  says("key 'llama.attention.head_count_kv' has 2 values for 3 layers",
       [&] { m.counts_per_layer("llama.attention.head_count_kv", 3, 9); });
  says("key 'absent' is missing", [&] { m.need_count("absent", 9); });
  says("key 'absent' is missing", [&] { m.need_text("absent"); });
  says("key 'absent' is missing", [&] { m.need_number("absent"); });
}

TEST(Gguf, TensorsAreRowMajorViews) {
  const TemporaryFolder folder;
  Gguf file = read_bytes(folder, valid_gguf().file());
  const Tensor& embedding = file.tensors.need("token_embd.weight");
  EXPECT_EQ(embedding.type, TensorType::q8_0);
  EXPECT_THAT(embedding.shape, ElementsAre(3, 32));
  EXPECT_EQ(rows(embedding), 3);
  EXPECT_EQ(cols(embedding), 32);
  EXPECT_EQ(embedding.data.size(), 3u * 34);
  const Tensor& norm = file.tensors.need("output_norm.weight");
  EXPECT_THAT(norm.shape, ElementsAre(5));
  EXPECT_EQ(rows(norm), 1);
  float out[5];
  dequantize_row(norm, 0, out);
  EXPECT_EQ(out[4], 0x1.7ep-1f);  // bf16 0x3f3f
  EXPECT_THAT(file.tensors.unused(), ElementsAre("blk.0.attn_q.weight"));
  EXPECT_EQ(file.tensors.find("output.weight"), nullptr);
  EXPECT_THAT(refusal([&] { file.tensors.need("output.weight"); }),
              HasSubstr("model.gguf: tensor 'output.weight' is missing"));
}

TEST(Gguf, DataOutlivesTheFileObject) {
  const TemporaryFolder folder;
  Tensor norm;
  { norm = read_bytes(folder, valid_gguf().file()).tensors.need("output_norm.weight"); }
  float out[5];
  dequantize_row(norm, 0, out);
  EXPECT_EQ(out[0], 0x1.7ep-1f);
}

TEST(Gguf, OtherAlignmentsAndGapsAreFine) {
  const TemporaryFolder folder;
  GgufWriter w;
  w.alignment = 64;
  w.u32("general.alignment", 64);
  w.tensor({"a", {2}, 0, raw(1.0f) + raw(2.0f), {}})
      .tensor({"b", {1}, 0, std::string(64, '\0') + raw(3.0f), 128});
  Gguf file = read_bytes(folder, w.file());
  float value = 0;
  dequantize_row(file.tensors.need("b"), 0, &value);
  EXPECT_EQ(value, 3.0f);
}

TEST(Gguf, EveryMalformedFileIsRefusedByName) {
  const TemporaryFolder folder;
  for (const Malformed& file : malformed_gguf_files()) {
    const std::string path = folder.write(file.name + ".gguf", file.bytes);
    const std::string message = refusal([&] { read_gguf(path); });
    EXPECT_THAT(message, HasSubstr(file.says)) << file.name;
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
  }
}

// Whatever is cut off, a file is refused (its last bytes are weights) and nothing but Error comes out.
TEST(Gguf, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  const std::string bytes = valid_gguf().file();
  for (size_t size = 1; size < bytes.size(); ++size)
    EXPECT_NE(refusal([&] { read_bytes(folder, bytes.substr(0, size)); }), "(accepted)") << size;
}

TEST(Gguf, RandomDamageGivesAnErrorOrAModel) {
  const TemporaryFolder folder;
  const std::string bytes = valid_gguf().file();
  Random random(7);
  for (int i = 0; i < 500; ++i) {
    std::string damaged = bytes;
    for (uint64_t n = 1 + random.below(4); n > 0; --n)
      damaged[random.below(damaged.size())] = char(random.next());
    refusal([&] {
      Gguf file = read_bytes(folder, damaged);
      for (const Tensor& tensor : file.tensors.all()) {
        std::vector<float> row(size_t(cols(tensor)));
        dequantize_row(tensor, rows(tensor) - 1, row.data());
      }
    });
  }
}

// The extremes of entries per byte: what opening holds must stay below four times the file.
TEST(Gguf, OpeningAllocatesLessThanFourTimesTheFile) {
  const TemporaryFolder folder;
  GgufWriter keys, tensors, tokens;
  for (int i = 0; i < 3000; ++i) {
    const std::string name{char('!' + i % 90), char('!' + i / 90)};
    keys.entry(name, 0, "x");
    tensors.alignment = 8;
    tensors.tensor({name, {1}, 0, raw(1.0f), {}});
  }
  tensors.u32("general.alignment", 8);
  tokens.texts("tokenizer.ggml.tokens", std::vector<std::string>(20000));
  GgufWriter claims = valid_gguf();
  claims.tensor_count = claims.file().size() / 33 - 10;
  for (const GgufWriter& w : {keys, tensors, tokens, claims, valid_gguf()}) {
    const std::string bytes = w.file();
    const std::string path = folder.write("model.gguf", bytes);
    const size_t before = allocated_bytes();
    reset_peak_allocated_bytes();
    refusal([&] { read_gguf(path); });
    EXPECT_LE(peak_allocated_bytes() - before, 4 * bytes.size() + 4096);  // 4096: paths and messages
  }
}

GgufWriter split_part(int number, int count) {
  GgufWriter w;
  w.entry("split.no", 2, raw(uint16_t(number))).entry("split.count", 2, raw(uint16_t(count)));
  w.tensor({"t" + std::to_string(number), {1}, 0, raw(float(number)), {}});
  return w;
}

TEST(Gguf, SplitModelsAreOne) {
  const TemporaryFolder folder;
  GgufWriter first = split_part(0, 3);
  first.text("general.architecture", "llama").entry("split.tensors.count", 5, raw(int32_t(3)));
  const std::string path = folder.write("m-00001-of-00003.gguf", first.file());
  folder.write("m-00002-of-00003.gguf", split_part(1, 3).file());
  EXPECT_THAT(refusal([&] { read_gguf(path); }), HasSubstr("m-00003-of-00003.gguf: cannot be opened"));
  folder.write("m-00003-of-00003.gguf", split_part(2, 3).file());
  {
    Gguf file = read_gguf(path);
    EXPECT_EQ(file.metadata.need_text("general.architecture"), "llama");
    ASSERT_EQ(file.tensors.all().size(), 3u);
    for (int i = 0; i < 3; ++i) {
      float value = -1;
      dequantize_row(file.tensors.need("t" + std::to_string(i)), 0, &value);
      EXPECT_EQ(value, float(i));
    }
  }
  folder.write("m-00003-of-00003.gguf", split_part(1, 3).file());
  EXPECT_THAT(refusal([&] { read_gguf(path); }), HasSubstr("is not file 3 of 3"));
  folder.write("m-00003-of-00003.gguf", split_part(2, 4).file());
  EXPECT_THAT(refusal([&] { read_gguf(path); }), HasSubstr("is not file 3 of 3"));
  GgufWriter doubled = split_part(2, 3);
  doubled.tensors[0].name = "t0";
  folder.write("m-00003-of-00003.gguf", doubled.file());
  EXPECT_THAT(refusal([&] { read_gguf(path); }), HasSubstr("tensor 't0' occurs twice"));
  folder.write("m-00003-of-00003.gguf", split_part(2, 3).u32("llama.block_count", 7).file());
  EXPECT_THAT(refusal([&] { read_gguf(path); }),
              HasSubstr("key 'llama.block_count' belongs in the first file"));
}

TEST(MappedFile, OnlyRegularFilesThatExist) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { MappedFile::open(folder.path() + "/none"); }),
              HasSubstr("none: cannot be opened"));
  EXPECT_THAT(refusal([&] { MappedFile::open(folder.path()); }), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal([&] { MappedFile::open(folder.write("empty", "")); }), HasSubstr("empty: is empty"));
  const std::string fifo = folder.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(refusal([&] { MappedFile::open(fifo); }), HasSubstr("is not a regular file"));
}

TEST(MappedFile, AFileShortenedWhileMappedIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", std::string(100'000, 'x'));
  const auto other = MappedFile::open(folder.write("other", std::string(100'000, 'y')));
  const auto file = MappedFile::open(path);
  EXPECT_EQ(file->bytes()[99'999], std::byte('x'));
  file->check_intact();
  ASSERT_EQ(truncate(path.c_str(), 10'000), 0);
  for (const size_t at : {99'999u, 50'000u, 20'000u}) EXPECT_EQ(file->bytes()[at], std::byte(0)) << at;
  EXPECT_EQ(file->bytes()[0], std::byte('x'));
  EXPECT_THAT(refusal([&] { file->check_intact(); }), HasSubstr("lost bytes while it was read"));
  other->check_intact();
  EXPECT_EQ(other->bytes()[99'999], std::byte('y'));
}

TEST(MappedFile, ReleasedPagesReadTheSame) {
  const TemporaryFolder folder;
  std::string bytes(300'000, '\0');
  Random random(3);
  for (char& c : bytes) c = char(random.next());
  const auto file = MappedFile::open(folder.write("file", bytes));
  const auto same = [&] { return std::memcmp(file->bytes().data(), bytes.data(), bytes.size()) == 0; };
  EXPECT_TRUE(same());
  file->release(file->bytes().subspan(1, 100'000));
  file->release(file->bytes());
  file->release(file->bytes().subspan(5000, 10));
  EXPECT_TRUE(same());
}

std::string checkpoint(const std::string& name) {
  const char* const folder = std::getenv("KVEVAL_MODELS");
  const char* const home = std::getenv("HOME");
  return (folder != nullptr ? std::string(folder)
                            : std::string(home != nullptr ? home : "") + "/.cache/kveval/models") +
         "/" + name + ".gguf";
}

struct Checkpoint {
  std::string name, architecture;
  uint64_t layers, width, heads, kv_heads, context, vocabulary;
  size_t tensors;
  std::map<std::string_view, int> types;
};

class RealGguf : public testing::TestWithParam<Checkpoint> {};

TEST_P(RealGguf, HoldsWhatIsKnownOfIt) {
  const Checkpoint& known = GetParam();
  const std::string path = checkpoint(known.name);
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is absent: scripts/fetch-model " << known.name;
  const size_t before = allocated_bytes();
  reset_peak_allocated_bytes();
  Gguf file = read_gguf(path);
  EXPECT_LE(peak_allocated_bytes() - before, 1u << 20);
  GgufMetadata& m = file.metadata;
  EXPECT_EQ(m.need_text("general.architecture"), known.architecture);
  const auto count = [&](const std::string& key) {
    return m.need_count(known.architecture + "." + key, 1 << 20);
  };
  EXPECT_EQ(count("block_count"), known.layers);
  EXPECT_EQ(count("embedding_length"), known.width);
  EXPECT_EQ(count("attention.head_count"), known.heads);
  EXPECT_EQ(count("attention.head_count_kv"), known.kv_heads);
  EXPECT_EQ(count("context_length"), known.context);
  EXPECT_EQ(m.texts("tokenizer.ggml.tokens")->size(), known.vocabulary);
  EXPECT_THAT(file.tensors.need("token_embd.weight").shape,
              ElementsAre(int64_t(known.vocabulary), int64_t(known.width)));
  std::map<std::string_view, int> types;
  for (const Tensor& tensor : file.tensors.all()) ++types[info_of(tensor.type).name];
  EXPECT_EQ(types, known.types);
  EXPECT_EQ(file.tensors.all().size(), known.tensors);

  // Weights of a trained model: finite, centred, neither vanishing nor huge.
  const Tensor& q = file.tensors.need("blk.0.attn_q.weight");
  std::vector<float> row(size_t(cols(q)));
  double sum = 0, squares = 0;
  for (int64_t r = 0; r < rows(q); ++r) {
    dequantize_row(q, r, row.data());
    for (const float x : row) sum += double(x), squares += double(x) * double(x);
  }
  const double n = double(rows(q)) * double(cols(q)), deviation = std::sqrt(squares / n);
  EXPECT_GT(deviation, 0.01);
  EXPECT_LT(deviation, 1.0);
  EXPECT_LT(std::abs(sum / n), 0.05 * deviation);
  file.tensors.release(q);
  file.tensors.check_intact();
}

INSTANTIATE_TEST_SUITE_P(
    , RealGguf,
    testing::Values(Checkpoint{"smollm2-135m",
                               "llama",
                               30,
                               576,
                               9,
                               3,
                               8192,
                               49152,
                               272,
                               {{"F32", 61}, {"Q4_1", 210}, {"Q8_0", 1}}},
                    Checkpoint{"gemma3-270m",
                               "gemma3",
                               18,
                               640,
                               4,
                               1,
                               32768,
                               262144,
                               236,
                               {{"F32", 109}, {"Q5_0", 81}, {"Q8_0", 10}, {"Q4_K", 27}, {"Q6_K", 9}}},
                    Checkpoint{"qwen2.5-coder-1.5b",
                               "qwen2",
                               28,
                               1536,
                               12,
                               2,
                               32768,
                               151936,
                               339,
                               {{"F32", 141}, {"Q4_K", 169}, {"Q6_K", 29}}}),
    [](const testing::TestParamInfo<Checkpoint>& model) {
      std::string name = model.param.name;
      for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

}  // namespace
}  // namespace kveval
