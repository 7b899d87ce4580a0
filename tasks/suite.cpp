#include "tasks/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "embedded.h"
#include "engine/error.h"
#include "engine/hash.h"

namespace kveval {
namespace {

using nlohmann::json;

constexpr int kMaxHaystacks = 100000;
constexpr size_t kMaxGroups = 1000000;      // years of work; each costs memory before the first one runs
constexpr size_t kMaxSuiteBytes = 1 << 20;  // real ones have a few hundred
constexpr int kMaxDepth = 64;               // of nested JSON; a suite needs 5

struct BuiltIn {
  std::string_view name;
  std::string_view json;
};

std::vector<BuiltIn> builtins() { return {{"niah", embedded::tasks_suites_niah_json}}; }

std::string joined_names() {
  std::string names;
  for (const BuiltIn& suite : builtins()) names += fmt::format("{}{}", names.empty() ? "" : ", ", suite.name);
  return names;
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::bad_file, "the suite " + message, "tasks/suites/niah.json shows the format.");
}

// JSON with comments. The parser itself keeps the last of two equal members; here the second is refused.
json parse_json(std::string_view text) {
  std::vector<std::set<std::string>> open;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) refuse(fmt::format("nests deeper than {} levels", kMaxDepth));
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
      refuse(fmt::format("has the member '{}' twice in one object", parsed.get<std::string>()));
    return true;
  };
  try {
    return json::parse(text, watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const json::parse_error& error) {
    const std::string_view before = text.substr(0, std::min(error.byte, text.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    refuse(fmt::format("is not JSON: line {}, byte {}", line, error.byte));
  }
}

void check_members(const json& object, const std::string& where,
                   std::initializer_list<std::string_view> known) {
  if (!object.is_object()) refuse(where + " is not an object");
  for (const auto& [name, value] : object.items())
    if (std::find(known.begin(), known.end(), name) == known.end())
      refuse(fmt::format("{} has an unknown member '{}'", where, name));
}

std::string read_text(const json& object, const std::string& where, const char* name) {
  if (!object.contains(name)) refuse(fmt::format("{} has no '{}'", where, name));
  const json& value = object[name];
  if (!value.is_string() || value.get_ref<const std::string&>().empty())
    refuse(fmt::format("{}: '{}' is no text", where, name));
  return value.get<std::string>();
}

int read_count(const json& object, const std::string& where, const char* name, int otherwise, int most) {
  if (!object.contains(name)) return otherwise;
  const json& value = object[name];
  if (!value.is_number_integer() || value < 1 || value > most)
    refuse(fmt::format("{}: '{}' is {}, which is no whole number from 1 to {}", where, name, value.dump(),
                       most));
  return value.get<int>();
}

int read_length(const json& value, const std::string& where) {
  if (value.is_string()) try {
      return parse_length(value.get_ref<const std::string&>());
    } catch (const Error& error) { refuse(fmt::format("{}: {}", where, error.what())); }
  if (!value.is_number_integer() || value < 1 || value > INT_MAX)
    refuse(fmt::format("{}: {} is no length", where, value.dump()));
  return value.get<int>();
}

Family read_family(const json& object, const std::string& where) {
  check_members(object, where, {"task", "lengths", "haystacks", "parameters"});
  Family family;
  family.task = read_text(object, where, "task");
  if (!object.contains("lengths") || !object["lengths"].is_array() || object["lengths"].empty())
    refuse(where + ": 'lengths' is no list of lengths");
  for (const json& length : object["lengths"]) family.lengths.push_back(read_length(length, where));
  family.haystacks = read_count(object, where, "haystacks", family.haystacks, kMaxHaystacks);
  try {
    family.parameters =
        task_named(family.task).resolve_parameters(object.value("parameters", json::object()));
  } catch (const Error& error) {
    throw Error(ErrorKind::bad_file, fmt::format("the suite {}: {}", where, error.what()), error.hint);
  }
  return family;
}

// A cell (task, length) has one set of haystacks: two families with the same would store under the same
// names.
void check_cells(const Suite& suite) {
  std::set<std::pair<std::string, int>> cells;
  size_t groups = 0;
  for (const Family& family : suite.families) {
    groups += family.lengths.size() * size_t(family.haystacks);
    for (const int length : family.lengths)
      if (!cells.emplace(family.task, length).second)
        refuse(fmt::format("asks for {} at {} twice", family.task, length_name(length)));
  }
  if (groups > kMaxGroups) refuse(fmt::format("asks for {} haystacks, more than {}", groups, kMaxGroups));
}

}  // namespace

Suite suite_from_json(std::string_view text) {
  const json object = parse_json(text);
  check_members(object, "itself", {"name", "version", "seed", "families"});
  Suite suite;
  suite.name = read_text(object, "itself", "name");
  suite.version = read_count(object, "itself", "version", suite.version, INT_MAX);
  if (object.contains("seed")) {
    if (!object["seed"].is_number_unsigned())
      refuse(
          fmt::format("has the seed {}, which is no whole number from 0 to 2^64 - 1", object["seed"].dump()));
    suite.seed = object["seed"].get<uint64_t>();
  }
  if (!object.contains("families") || !object["families"].is_array() || object["families"].empty())
    refuse("has no list of 'families'");
  for (size_t i = 0; i < object["families"].size(); ++i)
    suite.families.push_back(read_family(object["families"][i], fmt::format("families[{}]", i)));
  check_cells(suite);
  return suite;
}

std::string to_json(const Suite& suite) {
  json families = json::array();
  for (const Family& family : suite.families)
    families.push_back({{"task", family.task},
                        {"lengths", family.lengths},
                        {"haystacks", family.haystacks},
                        {"parameters", json::parse(family.parameters)}});
  return json{{"name", suite.name}, {"version", suite.version}, {"seed", suite.seed}, {"families", families}}
      .dump();
}

std::string suite_hash(const Suite& suite) { return hash_hex(to_json(suite)); }

std::vector<std::string> builtin_suites() {
  std::vector<std::string> names;
  for (const BuiltIn& suite : builtins()) names.emplace_back(suite.name);
  return names;
}

Suite load_suite(std::string_view name_or_path) {
  for (const BuiltIn& suite : builtins())
    if (suite.name == name_or_path) return suite_from_json(suite.json);
  std::ifstream file{std::string(name_or_path), std::ios::binary};
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(name_or_path, ignored))
    throw Error(ErrorKind::usage, fmt::format("there is no suite '{}', built in or as a file", name_or_path),
                fmt::format("Built-in suites: {}.", joined_names()));
  std::string text(kMaxSuiteBytes + 1, '\0');
  file.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(file.gcount()));
  if (text.size() > kMaxSuiteBytes)
    throw Error(ErrorKind::bad_file,
                fmt::format("{} is larger than a suite can be, {} bytes", name_or_path, kMaxSuiteBytes));
  try {
    return suite_from_json(text);
  } catch (const Error& error) {
    throw Error(error.kind, fmt::format("{}: {}", name_or_path, error.what()), error.hint);
  }
}

std::vector<GroupSpec> groups_of(const Suite& suite) {
  std::vector<GroupSpec> groups;
  for (const Family& family : suite.families)
    for (int haystack = 0; haystack < family.haystacks; ++haystack)
      for (const int length : family.lengths)
        groups.push_back({.task = family.task,
                          .parameters = family.parameters,
                          .length = length,
                          .haystack = haystack,
                          .seed = suite.seed});
  return groups;
}

int parse_length(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(size_t(end - text.data()));
  const int64_t factor = unit.empty()                 ? 1
                         : unit == "k" || unit == "K" ? 1024
                         : unit == "m" || unit == "M" ? 1 << 20
                                                      : 0;
  if (error != std::errc() || factor == 0 || number < 1 || number > INT_MAX / factor)
    throw Error(ErrorKind::usage, fmt::format("'{}' is no length", text),
                "Lengths are tokens: 5000, or 8k (8192), or 1m (1048576).");
  return int(number * factor);
}

std::vector<int> parse_lengths(std::string_view text) {
  std::vector<int> lengths;
  for (;;) {
    const size_t comma = text.find(',');
    lengths.push_back(parse_length(text.substr(0, comma)));
    if (comma == std::string_view::npos) return lengths;
    text.remove_prefix(comma + 1);
  }
}

std::string length_name(int tokens) {
  if (tokens > 0 && tokens % (1 << 20) == 0) return fmt::format("{}m", tokens >> 20);
  if (tokens > 0 && tokens % 1024 == 0) return fmt::format("{}k", tokens >> 10);
  return std::to_string(tokens);
}

}  // namespace kveval
