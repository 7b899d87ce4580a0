// One GGUF file for each way to be wrong: shared by the test (each must be refused, naming the field) and by
// the fuzzer's seeds.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "tests/engine/gguf_writer.h"

namespace kveval {

struct Malformed {
  std::string name;  // of the fixture
  std::string bytes;
  std::string says;  // part of the error's message
};

// Every kind of value and of array, and tensors of three types.
inline GgufWriter valid_gguf() {
  GgufWriter w;
  w.text("general.architecture", "llama").u32("llama.block_count", 2).u32("general.alignment", 32);
  w.entry("a.u8", 0, raw(uint8_t(200)))
      .entry("a.i8", 1, raw(int8_t(-100)))
      .entry("a.u16", 2, raw(uint16_t(60000)));
  w.entry("a.i16", 3, raw(int16_t(-30000))).entry("a.i32", 5, raw(int32_t(-7))).entry("a.f32", 6, raw(1.5f));
  w.entry("a.true", 7, raw(uint8_t(1))).entry("a.u64", 10, raw(uint64_t(1) << 40));
  w.entry("a.i64", 11, raw(int64_t(-1))).entry("a.f64", 12, raw(0.1));
  w.texts("tokenizer.ggml.tokens", {"<s>", "", "\xe2\x96\x81the"});
  w.array("tokenizer.ggml.scores", 6, 3, raw(0.0f) + raw(-1.0f) + raw(-2.0f));
  w.array("llama.attention.head_count_kv", 5, 2, raw(int32_t(3)) + raw(int32_t(4)));
  w.array("llama.attention.sliding_window_pattern", 7, 2, std::string("\x01\x00", 2));
  w.tensor({"token_embd.weight", {32, 3}, 8, std::string(3 * 34, '\x11'), {}});
  w.tensor({"blk.0.attn_q.weight", {4, 2}, 0, std::string(32, '\x3f'), {}});
  w.tensor({"output_norm.weight", {5}, 30, std::string(10, '\x3f'), {}});
  return w;
}

inline std::vector<Malformed> malformed_gguf_files() {
  std::vector<Malformed> files;
  const auto add = [&](const std::string& name, const GgufWriter& w, const std::string& says) {
    files.push_back({name, w.file(), says});
  };
  // A valid file with one tensor replaced, or one more entry.
  const auto add_tensor = [&](const std::string& name, GgufWriter::TensorInfo t, const std::string& says) {
    GgufWriter w = valid_gguf();
    w.tensor(std::move(t));
    add(name, w, says);
  };
  const auto add_entry = [&](const std::string& name, const std::string& key, uint32_t type,
                             const std::string& value, const std::string& says) {
    GgufWriter w = valid_gguf();
    w.entry(key, type, value);
    add(name, w, says);
  };
  const auto with_alignment = [&](uint32_t alignment, const std::string& says) {
    GgufWriter w;
    w.u32("general.alignment", alignment).tensor({"t", {4}, 0, std::string(16, '\0'), {}});
    add("alignment_" + std::to_string(alignment), w, says);
  };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  GgufWriter w;

  // The header.
  files.push_back({"three_bytes", "GGU", "the header"});
  w = valid_gguf(), w.magic = "GGML";
  add("magic", w, "not a GGUF file");
  w = valid_gguf(), w.version = 1;
  add("version_1", w, "version 1");
  w = valid_gguf(), w.version = 4;
  add("version_4", w, "version 4");
  w = valid_gguf(), w.version = 0x03000000;
  add("big_endian", w, "big-endian");
  files.push_back({"header_cut", valid_gguf().file().substr(0, 20), "the header"});

  // Counts, before anything is allocated for them (CVE-2024-21836 tensors, CVE-2024-23605 keys).
  w = valid_gguf(), w.tensor_count = kMax;
  add("tensor_count_2_64", w, "tensor count");
  w = valid_gguf(), w.tensor_count = (uint64_t(1) << 61) + 1;  // times eight wraps to eight
  add("tensor_count_wraps", w, "tensor count");
  w = valid_gguf(), w.tensor_count = 60;
  add("tensor_count_more_than_fits", w, "tensor count");
  w = valid_gguf(), w.tensor_count = 4;
  add("tensor_count_one_too_many", w, "tensor");
  w = valid_gguf(), w.key_count = kMax;
  add("key_count_2_64", w, "key count");
  w = valid_gguf(), w.key_count = 70000;
  add("key_count_70000", w, "key count");
  w = valid_gguf(), w.key_count = 18;
  add("key_count_one_too_many", w, "key");

  // Keys and texts (CVE-2024-23496 string length, CVE-2024-21825 arrays of strings).
  w = {}, w.entries.push_back(raw(kMax) + std::string(60, 'k')), add("key_length_2_64", w, "name of key 0");
  w = {}, w.entries.push_back(raw(uint64_t(65537)) + std::string(65537, 'k') + raw(uint32_t(0)) + "x");
  add("key_length_65537", w, "more than the limit of 65536");
  w = {}, w.entries.push_back(raw(uint64_t(100)) + std::string(60, 'k')), add("key_cut", w, "name of key 0");
  add_entry("key_empty", "", 0, "x", "empty");
  add_entry("key_nul", std::string("a\0b", 3), 0, "x", "control characters: 'a\\x00b'");
  add_entry("key_escape", "a\x1b[31m", 0, "x", "control characters: 'a\\x1b[31m'");
  add_entry("key_twice", "a.u8", 0, "x", "key 'a.u8' occurs twice");
  add_entry("text_length_2_64", "z", 8, raw(kMax) + "x", "value of key 'z'");
  add_entry("text_length_17_mb", "z", 8, raw(uint64_t(17) << 20) + "x", "more than the limit of 16777216");
  add_entry("text_past_end", "z", 8, raw(uint64_t(5000)) + "x", "value of key 'z'");
  add_entry("type_13", "z", 13, "xxxxxxxx", "key 'z' has unknown type 13");
  add_entry("type_2_31", "z", 1u << 31, "xxxxxxxx", "key 'z' has unknown type 2147483648");
  add_entry("boolean_2", "z", 7, "\x02", "key 'z' has a boolean of value 2");
  w = {}, w.entry("z", 12, "xx"), w.entries[0].resize(w.entries[0].size() - 1),
  add("value_cut", w, "value of key 'z'");

  // Arrays.
  add_entry("array_of_arrays", "z", 9, raw(uint32_t(9)) + raw(uint64_t(1)) + "x", "array of arrays");
  add_entry("array_type_13", "z", 9, raw(uint32_t(13)) + raw(uint64_t(1)) + "x", "array of unknown type 13");
  add_entry("array_count_2_64", "z", 9, raw(uint32_t(0)) + raw(kMax), "array of key 'z'");
  add_entry("array_count_wraps", "z", 9, raw(uint32_t(10)) + raw((uint64_t(1) << 61) + 1),
            "array of key 'z'");
  add_entry("array_texts_count_2_61", "z", 9, raw(uint32_t(8)) + raw(uint64_t(1) << 61), "array of key 'z'");
  add_entry("array_past_end", "z", 9, raw(uint32_t(6)) + raw(uint64_t(5000)), "array of key 'z'");
  add_entry("array_text_length_2_64", "z", 9, raw(uint32_t(8)) + raw(uint64_t(2)) + raw_text("a") + raw(kMax),
            "element 1 of key 'z'");
  add_entry("array_boolean_9", "z", 9, raw(uint32_t(7)) + raw(uint64_t(2)) + "\x01\x09",
            "boolean of value 9");

  // Alignment (llama.cpp #24997: 2^31).
  with_alignment(0, "'general.alignment' is 0");
  with_alignment(4, "'general.alignment' is 4");
  with_alignment(48, "'general.alignment' is 48");
  with_alignment(131072, "'general.alignment' is 131072");
  with_alignment(1u << 31, "'general.alignment' is 2147483648");
  w = {}, w.entry("general.alignment", 8, raw_text("32")),
  add("alignment_text", w, "'general.alignment' is not");

  // Tensors: names, shapes (CVE-2024-21802; CVE-2025-53630, CVE-2026-27940, CVE-2026-33298: sizes that wrap),
  // types.
  const std::string data(64, '\0');
  add_tensor("tensor_name_empty", {"", {4}, 0, data, {}}, "empty");
  add_tensor("tensor_name_64", {std::string(64, 'n'), {4}, 0, data, {}}, "name of tensor 3");
  add_tensor("tensor_name_nul", {std::string("a\0b", 3), {4}, 0, data, {}}, "control characters");
  add_tensor("tensor_twice", {"output_norm.weight", {4}, 0, data, {}},
             "tensor 'output_norm.weight' occurs twice");
  add_tensor("tensor_no_dimension", {"t", {}, 0, data, {}}, "tensor 't' has 0 dimensions");
  add_tensor("tensor_five_dimensions", {"t", {1, 1, 1, 1, 1}, 0, data, {}}, "tensor 't' has 5 dimensions");
  add_tensor("tensor_dimension_0", {"t", {0}, 0, data, {}},
             "tensor 't' of type F32 has the impossible shape [0]");
  add_tensor("tensor_dimension_0_of_2", {"t", {4, 0}, 0, data, {}}, "impossible shape [0, 4]");
  add_tensor("tensor_dimension_negative", {"t", {kMax}, 0, data, {}}, "impossible shape [-1]");
  add_tensor("tensor_dimension_2_32", {"t", {uint64_t(1) << 32, uint64_t(1) << 32}, 0, data, {}},
             "impossible shape");
  add_tensor("tensor_dimension_2_62", {"t", {uint64_t(1) << 62}, 0, data, {}}, "impossible shape");
  add_tensor("tensor_product_2_64", {"t", {1 << 30, 1 << 30, 4, 1}, 0, data, {}}, "tensor 't'");
  add_tensor("tensor_product_2_124", {"t", {1u << 31, 1u << 31, 1u << 31, 1u << 31}, 0, data, {}},
             "impossible shape");
  add_tensor("tensor_no_whole_block", {"t", {33}, 8, data, {}},
             "tensor 't' of type Q8_0 has the impossible shape [33]");
  add_tensor("tensor_no_whole_k_block", {"t", {128}, 12, data, {}},
             "type Q4_K has the impossible shape [128]");
  add_tensor("tensor_type_iq3_s", {"t", {256}, 21, data, {}}, "type IQ3_S, which kveval does not read");
  add_tensor("tensor_type_4", {"t", {32}, 4, data, {}}, "tensor 't' has unknown type 4");
  add_tensor("tensor_type_2_32", {"t", {32}, 0xffffffffu, data, {}}, "unknown type 4294967295");

  // Places.
  add_tensor("offset_unaligned", {"t", {4}, 0, data, 516}, "no multiple of the alignment 32");
  add_tensor("offset_2_64", {"t", {4}, 0, data, kMax - 31}, "tensor 't' (16 bytes at 18446744073709551584)");
  add_tensor("offset_wraps", {"t", {16}, 0, data, kMax - 63}, "reaches past the end");
  add_tensor("offset_past_end", {"t", {4}, 0, data, 1 << 20}, "reaches past the end");
  add_tensor("size_past_end", {"t", {1000}, 0, data, {}}, "tensor 't' (4000 bytes");
  add_tensor("overlap_same", {"t", {4}, 0, data, 0}, "overlap");
  add_tensor("overlap_partly", {"t", {4}, 0, data, 96}, "overlap");
  w = valid_gguf();
  files.push_back({"data_cut", w.file().substr(0, w.file().size() - 1), "reaches past the end"});
  files.push_back({"data_missing", w.header(), "reaches past the end"});

  // Splits.
  w = {}, w.entry("split.no", 2, raw(uint16_t(1))).entry("split.count", 2, raw(uint16_t(3)));
  add("split_not_first", w, "is file 2 of a model split into 3");
  w = {}, w.entry("split.no", 2, raw(uint16_t(0))).entry("split.count", 2, raw(uint16_t(60000)));
  add("split_count_60000", w, "'split.count' has the value 60000");
  w = {}, w.entry("split.no", 2, raw(uint16_t(0))).entry("split.count", 2, raw(uint16_t(2)));
  add("split_name", w, "does not end in -00001-of-00002.gguf");
  w = valid_gguf(), w.entry("split.tensors.count", 5, raw(int32_t(9)));
  add("split_tensor_count", w, "'split.tensors.count' is 9, the files hold 3");
  w = valid_gguf(), w.entry("split.tensors.count", 5, raw(int32_t(-9)));
  add("split_tensor_count_negative", w, "'split.tensors.count' has the value -9");
  return files;
}

}  // namespace kveval
