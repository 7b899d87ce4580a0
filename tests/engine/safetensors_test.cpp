#include "engine/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/random.h"
#include "tests/engine/allocation_count.h"
#include "tests/engine/malformed_safetensors.h"
#include "tests/engine/refusal.h"
#include "tests/engine/temporary_file.h"

namespace kveval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of(const std::string& path) {
  return refusal([&] { read_safetensors(path); });
}

float first_value(const Tensor& tensor) {
  std::vector<float> row(size_t(cols(tensor)));
  dequantize_row(tensor, 0, row.data());
  return row[0];
}

TEST(Safetensors, ReadsTheWeightDtypes) {
  const TemporaryFolder folder;
  TensorSet tensors = read_safetensors(folder.write("model.safetensors", valid_safetensors()));
  const Tensor& b = tensors.need("b");
  EXPECT_EQ(b.type, TensorType::bf16);
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(first_value(b), 0x1.7ep-1f);  // bf16 0x3f3f
  EXPECT_EQ(first_value(tensors.need("a")), 0x1.7e7e7ep-1f);
  const Tensor& scale = tensors.need("model.layers.0.self_attn.k_scale");
  EXPECT_TRUE(scale.shape.empty());
  EXPECT_EQ(first_value(scale), 0x1.cfcp+0f);  // half 0x3f3f
  EXPECT_TRUE(tensors.unused().empty());
  EXPECT_EQ(read_safetensors(folder.path()).all().size(), 3u);  // as a directory
}

TEST(Safetensors, EveryMalformedFileIsRefusedByName) {
  const TemporaryFolder folder;
  for (const Malformed& file : malformed_safetensors_files()) {
    const std::string path = folder.write(file.name + ".safetensors", file.bytes);
    const std::string message = refusal_of(path);
    EXPECT_THAT(message, HasSubstr(file.says)) << file.name;
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
  }
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  const std::string bytes = valid_safetensors();
  for (size_t size = 1; size < bytes.size(); ++size)
    EXPECT_NE(refusal_of(folder.write("model.safetensors", bytes.substr(0, size))), "(accepted)") << size;
}

TEST(Safetensors, RandomDamageGivesAnErrorOrAModel) {
  const TemporaryFolder folder;
  const std::string bytes = valid_safetensors();
  Random random(9);
  for (int i = 0; i < 500; ++i) {
    std::string damaged = bytes;
    for (uint64_t n = 1 + random.below(4); n > 0; --n)
      damaged[random.below(damaged.size())] = char(random.next());
    refusal_of(folder.write("model.safetensors", damaged));
  }
}

TEST(Safetensors, OpeningAllocatesLessThanFourTimesTheFile) {
  const TemporaryFolder folder;
  std::string entries, metadata;
  for (int i = 0; i < 16385; ++i) {  // one more than a power of two: the most a growing vector wastes
    const std::string name = std::to_string(i);
    entries += (i > 0 ? ",\"" : "\"") + name + R"(":{"dtype":"F16","shape":[],"data_offsets":[)" +
               std::to_string(2 * i) + "," + std::to_string(2 * i + 2) + "]}";
    if (i < 4000) metadata += (i > 0 ? ",\"" : "\"") + name + R"(":"")";
  }
  const std::string long_text = "{\"" + std::string(60'000, 'a') + "\":{}}";
  for (const std::string& bytes :
       {safetensors_file("{" + entries + "}", 2 * 16385),
        safetensors_file(R"({"__metadata__":{)" + metadata + "}}", 0), safetensors_file(long_text, 0),
        safetensors_file("{\"" + std::string(5'000'000, 'a') + "\":{}}", 0)}) {
    const std::string path = folder.write("model.safetensors", bytes);
    const size_t before = allocated_bytes();
    reset_peak_allocated_bytes();
    refusal_of(path);
    // The constant: one text of 64 KiB in a growing buffer, 4096 metadata keys.
    EXPECT_LE(peak_allocated_bytes() - before, 4 * bytes.size() + (1u << 19));
  }
}

// Two files and an index; tests change one thing.
struct Sharded {
  TemporaryFolder folder;
  std::string index(const std::string& json) const {
    return folder.write("model.safetensors.index.json", json);
  }
  Sharded() {
    folder.write("one.safetensors",
                 safetensors_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    folder.write("two.safetensors",
                 safetensors_file(R"({"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)"
                                  R"("c":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})",
                                  4));
  }
};

const std::string kGoodMap =
    R"("weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})";

TEST(SafetensorsIndex, JoinsItsFiles) {
  const Sharded s;
  s.index(R"({"metadata":{"total_size":8,"x":[1,{"y":null}]},)" + kGoodMap + "}");
  TensorSet tensors = read_safetensors(s.folder.path());
  EXPECT_EQ(tensors.all().size(), 3u);
  EXPECT_EQ(tensors.files().size(), 2u);
  EXPECT_EQ(first_value(tensors.need("c")), 0x1.cfcp+0f);
  EXPECT_THAT(tensors.unused(), ElementsAre("a", "b"));
}

TEST(SafetensorsIndex, RefusesWhatItsFilesDoNotHold) {
  const Sharded s;
  const auto says = [&](const std::string& map, const std::string& text) {
    const std::string message = refusal_of(s.index(R"({"weight_map":{)" + map + "}}"));
    EXPECT_THAT(message, testing::AllOf(HasSubstr("model.safetensors.index.json: "), HasSubstr(text)));
  };
  const std::string a = R"("a":"one.safetensors")", b = R"("b":"two.safetensors")",
                    c = R"("c":"two.safetensors")";
  says(a + "," + b, "does not list tensor 'c'");
  says(a + "," + b + "," + c + R"(,"d":"two.safetensors")", "lists tensor 'd' in 'two.safetensors'");
  says(a + "," + b + R"(,"c":"one.safetensors")",
       "lists tensor 'c' in 'one.safetensors', which does not hold it");
  says(a + "," + b + "," + c + "," + c, "lists tensor 'c' twice");
  for (const std::string name :
       {"../one.safetensors", "/etc/one.safetensors", "x/one.safetensors", "x\\\\one.safetensors",
        "..safetensors", "", "one.bin", "a\\u0000.safetensors", "a\\n.safetensors"})
    says(R"("a":")" + name + "\"", "no plain name");
  EXPECT_THAT(refusal_of(s.index(R"({"weight_map":{"a":"three.safetensors"}})")),
              HasSubstr("three.safetensors: cannot be opened"));
}

TEST(SafetensorsIndex, RefusesMalformedJson) {
  const Sharded s;
  const auto says = [&](const std::string& json, const std::string& text) {
    EXPECT_THAT(refusal_of(s.index(json)), testing::AllOf(HasSubstr("index.json: "), HasSubstr(text)))
        << json;
  };
  says("", "is empty");
  says("{", "malformed JSON");
  says("{}", "has no 'weight_map'");
  says("[]", "an array out of place");
  says("7", "a number out of place");
  says("\"x\"", "has no 'weight_map'");
  says("{" + kGoodMap + "," + kGoodMap + "}", "'weight_map' twice");
  says(R"({"weight_map":[]})", "an array out of place");
  says(R"({"weight_map":"x"})", "a text out of place");
  says(R"({"weight_map":{"a":1}})", "a number out of place");
  says(R"({"weight_map":{"a":{}}})", "an object out of place");
  says(R"({"weight_map":{"a":["one.safetensors"]}})", "an array out of place");
  says(R"({"metadata":)" + std::string(100, '[') + std::string(100, ']') + "," + kGoodMap + "}",
       "nested deeper than 64");
  says("{\"metadata\":\"" + std::string(70'000, 'x') + "\"," + kGoodMap + "}",
       "a text of more than 65536 bytes");
  std::string many = R"({"weight_map":{)";
  for (int i = 0; i < 1100; ++i)
    many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  says(many + "}}", "lists more than 1024 files");
}

TEST(Safetensors, ADirectoryWithoutWeightsSaysSo) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("neither model.safetensors nor"));
}

}  // namespace
}  // namespace kveval
