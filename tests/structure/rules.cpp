#include "tests/structure/rules.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <set>
#include <sstream>

namespace kveval::structure {
namespace {

// What the files of a folder may include of the repository: folders (ending in '/') and single files.
// The longest matching folder decides.
struct Rule {
  std::string_view folder;
  std::vector<std::string_view> allowed;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"engine/", {"engine/"}},
      {"tasks/",
       {"tasks/", "engine/engine.h", "engine/error.h", "engine/hash.h", "engine/random.h",
        "engine/deterministic_math.h", "engine/text/tokenizer.h",
        "engine/text/chat.h"}},  // prompts are framed
      {"reports/", {"reports/", "harness/store.h", "engine/error.h"}},
      {"harness/", {"harness/", "tasks/", "engine/"}},
      {"harness/commands/", {"harness/", "tasks/", "engine/", "reports/"}},
      {"harness/main.cpp", {"harness/", "tasks/", "engine/", "reports/"}},
  };
  return kRules;
}

// Libraries that only some folders may know.
struct Fence {
  std::string_view library;
  std::string_view header_prefix;
  std::vector<std::string_view> folders;
};

const std::vector<Fence>& fences() {
  static const std::vector<Fence> kFences = {
      {"CUDA", "cuda", {"engine/cuda/"}},
      {"CUDA", "cublas", {"engine/cuda/"}},
      {"SQLite", "SQLiteCpp/", {"harness/store", "harness/migrate"}},
      {"SQLite", "sqlite3", {"harness/store", "harness/migrate"}},
      {"CLI11", "CLI/", {"harness/commands/", "harness/main"}},
  };
  return kFences;
}

bool within(std::string_view path, std::string_view folder_or_file) {
  return folder_or_file.ends_with('/') ? path.starts_with(folder_or_file) : path == folder_or_file;
}

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

// Written into the build folder by scripts/embed.cmake and scripts/build-info.cmake.
bool is_generated(std::string_view header) { return header == "embedded.h" || header == "build_info.h"; }

const Rule* rule_for(std::string_view path) {
  const Rule* best = nullptr;
  for (const Rule& rule : rules())
    if (within(path, rule.folder) && (!best || rule.folder.size() > best->folder.size())) best = &rule;
  return best;
}

std::string quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

std::string_view trim(std::string_view line) {
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front()))) line.remove_prefix(1);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.remove_suffix(1);
  return line;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::vector<Include> includes_of(std::string_view text) {
  std::vector<Include> includes;
  for (std::string_view line : lines_of(text)) {
    line = trim(line);
    if (!line.starts_with('#')) continue;
    line = trim(line.substr(1));
    if (!line.starts_with("include")) continue;
    line = trim(line.substr(std::string_view("include").size()));
    if (line.empty() || (line[0] != '"' && line[0] != '<')) continue;
    const bool is_quoted = line[0] == '"';
    const size_t end = line.find(is_quoted ? '"' : '>', 1);
    if (end != std::string_view::npos) includes.push_back({std::string(line.substr(1, end - 1)), is_quoted});
  }
  return includes;
}

Violations check_arrows(const Tree& tree) {
  Violations violations;
  for (const auto& [path, text] : tree) {
    const Rule* rule = rule_for(path);
    if (!rule) {
      violations.push_back(path + ": is in a folder that tests/structure/rules.cpp has no rule for");
      continue;
    }
    for (const Include& include : includes_of(text)) {
      for (const Fence& fence : fences()) {
        const bool inside = std::ranges::any_of(
            fence.folders, [&path = path](std::string_view folder) { return path.starts_with(folder); });
        if (include.target.starts_with(fence.header_prefix) && !inside)
          violations.push_back(path + ": includes " + quoted(include.target) + ", but " +
                               std::string(fence.library) + " stays in " + std::string(fence.folders[0]));
      }
      if (!include.quoted || is_generated(include.target)) continue;
      if (!tree.contains(include.target))
        violations.push_back(path + ": includes " + quoted(include.target) +
                             ", which is no file of the repository; name ours from the root, others in <>");
      else if (std::ranges::none_of(
                   rule->allowed,
                   [&include](std::string_view allowed) { return within(include.target, allowed); }) ||
               (include.target.starts_with("harness/commands/") && !path.starts_with("harness/commands/") &&
                path != "harness/main.cpp"))
        violations.push_back(path + ": includes " + quoted(include.target) + " against the arrows");
    }
  }
  return violations;
}

Violations check_headers(const Tree& tree) {
  Violations violations;
  for (const auto& [path, text] : tree) {
    if (!is_header(path)) continue;
    const std::vector<std::string_view> lines = lines_of(text);
    if (lines.empty() || !lines[0].starts_with("// "))
      violations.push_back(path + ": does not begin with a comment that says what it is");
    const auto code = std::ranges::find_if(
        lines, [](std::string_view line) { return !trim(line).empty() && !line.starts_with("//"); });
    if (code == lines.end() || trim(*code) != "#pragma once")
      violations.push_back(path + ": its first line of code is not #pragma once");
  }
  return violations;
}

Violations check_cycles(const Tree& tree) {
  Violations violations;
  std::set<std::string> finished;
  std::vector<std::string> trail;
  const std::function<void(const std::string&)> visit = [&](const std::string& path) {
    if (finished.contains(path)) return;
    if (const auto begin = std::ranges::find(trail, path); begin != trail.end()) {
      std::string cycle;
      for (auto step = begin; step != trail.end(); ++step) cycle += *step + " -> ";
      violations.push_back(path + ": includes itself: " + cycle + path);
      return;
    }
    trail.push_back(path);
    for (const Include& include : includes_of(tree.at(path)))
      if (is_header(include.target) && tree.contains(include.target)) visit(include.target);
    trail.pop_back();
    finished.insert(path);
  };
  for (const auto& [path, text] : tree)
    if (is_header(path)) visit(path);
  return violations;
}

Violations check_lengths(const Tree& tree, size_t limit, const std::map<std::string, std::string>& exempt) {
  Violations violations;
  for (const auto& [path, text] : tree) {
    const size_t lines = lines_of(text).size();
    if (lines > limit && !exempt.contains(path))
      violations.push_back(path + ": has " + std::to_string(lines) + " lines, more than " +
                           std::to_string(limit) + "; split it or give a reason");
  }
  for (const auto& [path, reason] : exempt) {
    const auto file = tree.find(path);
    if (reason.empty() || file == tree.end() || lines_of(file->second).size() <= limit)
      violations.push_back(path + ": is exempt from the length limit without a reason or a need");
  }
  return violations;
}

}  // namespace kveval::structure
