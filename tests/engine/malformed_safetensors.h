// One safetensors file for each way to be wrong: shared by the test and by the fuzzer's seeds.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/malformed_gguf.h"

namespace kveval {

inline std::string safetensors_file(const std::string& json, const std::string& data) {
  return raw(uint64_t(json.size())) + json + data;
}
inline std::string safetensors_file(const std::string& json, size_t data_bytes) {
  return safetensors_file(json, std::string(data_bytes, '\x3f'));
}

inline std::string valid_safetensors() {
  return safetensors_file(
      R"({"__metadata__":{"format":"pt"},)"
      R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"},)"
      R"("model.layers.0.self_attn.k_scale":{"dtype":"F16","shape":[],"data_offsets":[20,22]}}  )",
      22);
}

inline std::vector<Malformed> malformed_safetensors_files() {
  std::vector<Malformed> files;
  const auto add = [&](const std::string& name, const std::string& json, size_t data,
                       const std::string& says) {
    files.push_back({name, safetensors_file(json, data), says});
  };
  // One entry named t with eight bytes of data.
  const auto add_entry = [&](const std::string& name, const std::string& entry, const std::string& says) {
    add(name, R"({"t":)" + entry + "}", 8, says);
  };
  const auto add_offsets = [&](const std::string& name, const std::string& offsets, const std::string& says) {
    add_entry(name, R"({"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}", says);
  };
  const auto add_shape = [&](const std::string& name, const std::string& shape, const std::string& says) {
    add_entry(name, R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]})", says);
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto add_second = [&](const std::string& name, const std::string& second, size_t data,
                              const std::string& says) {
    add(name, "{" + a + "," + second + "}", data, says);
  };

  // The length and the JSON as such.
  files.push_back({"seven_bytes", "1234567", "too short"});
  files.push_back({"header_length_2_64", std::string(8, '\xff') + "{}", "header length"});
  files.push_back({"header_length_past_end", raw(uint64_t(3)) + "{}", "header length of 3"});
  files.push_back({"header_length_200_mb", raw(uint64_t(200'000'000)) + "{}", "header length"});
  files.push_back({"header_empty", raw(uint64_t(0)) + "{}", "no JSON object"});
  add("header_array", "[]", 0, "no JSON object");
  add("header_space_first", " {}", 0, "no JSON object");
  add("json_cut", R"({"a":{"dtype":"F32")", 0, "malformed JSON");
  add("json_trailing", "{}x", 0, "malformed JSON");
  add("json_trailing_nul", std::string("{}\0", 3), 0, "malformed JSON");
  add("json_not_utf8", "{\"\xff\":1}", 0, "malformed JSON");
  add("json_comment", "{/*a*/}", 0, "malformed JSON");
  add(
      "json_deep_objects",
      [] {
        std::string text;
        for (int i = 0; i < 2000; ++i) text += R"({"a":)";
        return text;
      }(),
      0, "the unknown key 'a' in the entry of tensor 'a'");
  add("json_deep_arrays", R"({"t":)" + std::string(5000, '['), 0, "an array out of place");
  add("json_long_text", "{\"" + std::string(70'000, 'a') + "\":{}}", 0, "a text of more than 65536 bytes");

  // Entries.
  add_entry("entry_number", "1", "a number out of place in the entry of tensor 't'");
  add_entry("entry_null", "null", "a null out of place in the entry of tensor 't'");
  add_entry("entry_text", R"("F32")", "a text out of place");
  add_entry("entry_empty", "{}", "tensor 't' lacks its dtype");
  add_entry("no_shape", R"({"dtype":"F32","data_offsets":[0,8]})", "tensor 't' lacks its shape");
  add_entry("no_offsets", R"({"dtype":"F32","shape":[2]})", "tensor 't' lacks its data_offsets");
  add_entry("unknown_key", R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})",
            "the unknown key 'x'");
  add_entry("key_twice", R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})",
            "key 'dtype' twice");
  add_entry("dtype_number", R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})", "a number out of place");
  add_entry("dtype_boolean", R"({"dtype":true,"shape":[2],"data_offsets":[0,8]})", "a boolean out of place");
  add_entry("dtype_array", R"({"dtype":["F32"],"shape":[2],"data_offsets":[0,8]})", "an array out of place");
  add_entry("dtype_object", R"({"dtype":{},"shape":[2],"data_offsets":[0,8]})", "an object out of place");
  add_entry("dtype_unknown", R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})",
            "tensor 't' has an unknown dtype 'F33'");
  add_entry("dtype_f8", R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})",
            "tensor 't' has the dtype 'F8_E4M3', which kveval does not read");
  add_entry("dtype_i64", R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})", "the dtype 'I64'");
  add_second("name_twice", R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})", 16,
             "tensor 'a' occurs twice");
  add("name_empty", R"({"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, "empty");
  add("name_control", R"({"a\u001b[31m":{}})", 8, "control characters: 'a\\x1b[31m'");

  // Shapes.
  add_shape("dimension_0", "[0,2]", "a dimension of 0");
  add_shape("dimension_negative", "[-2]", "the number -2 in the entry of tensor 't'");
  add_shape("dimension_float", "[2.0]", "2.0, which is no 64-bit integer");
  add_shape("dimension_text", R"(["2"])", "a text out of place");
  add_shape("dimension_2_32", "[4294967296,4294967296]", "a dimension of 4294967296");
  add_shape("dimension_2_64", "[18446744073709551616]", "18446744073709551616, which is no 64-bit integer");
  add_shape("dimensions_wrap", "[2147483648,2147483648,4]", "do not fit F32");
  add_shape("dimensions_nine", "[1,1,1,1,1,1,1,1,2]", "more than 8 dimensions");
  add_shape("shape_nested", "[[2]]", "an array out of place");
  add_shape("shape_number", "2", "a number out of place");

  // Offsets.
  add_offsets("offsets_one", "[0]", "less than two data_offsets");
  add_offsets("offsets_three", "[0,8,8]", "more than two data_offsets");
  add_offsets("offsets_float", "[0,8.0]", "8.0, which is no 64-bit integer");
  add_offsets("offsets_exponent", "[0,8e0]", "8e0, which is no 64-bit integer");
  add_offsets("offsets_negative", "[-8,0]", "the number -8");
  add_offsets("offsets_text", R"(["0","8"])", "a text out of place");
  add_offsets("offsets_null", "[0,null]", "a null out of place");
  add_offsets("offsets_reversed", "[8,0]", "data_offsets [8, 0]");
  add_offsets("offsets_too_long", "[0,12]", "data_offsets [0, 12], which do not fit F32 [2]");
  add_offsets("offsets_wrap", "[18446744073709551608,0]", "do not fit");
  add_offsets("offsets_not_from_0", "[4,12]", "tensor 't' begins at 4 where the data before it ends at 0");
  add_second("overlap", R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})", 12,
             "tensor 'b' begins at 4 where the data before it ends at 8");
  add_second("gap", R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]})", 20,
             "tensor 'b' begins at 12");
  add_second("past_end", R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})", 15,
             "tensor 'b' ends at 16, past the file's 15 bytes");
  add_second("data_left_over", R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})", 17,
             "has 17 bytes of data, its tensors 16");
  add("data_without_tensors", "{}", 1, "has 1 bytes of data, its tensors 0");

  // Metadata.
  add("metadata_number", R"({"__metadata__":{"a":1}})", 0, "a number out of place in '__metadata__'");
  add("metadata_object", R"({"__metadata__":{"a":{}}})", 0, "an object out of place in '__metadata__'");
  add("metadata_text", R"({"__metadata__":"a"})", 0, "a text out of place in '__metadata__'");
  add("metadata_key_twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "key 'a' twice in '__metadata__'");
  add("metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' twice");
  return files;
}

}  // namespace kveval
