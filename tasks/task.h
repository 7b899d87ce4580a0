// Sample and Task: what is asked, and what counts as right. Knows text and token counts, nothing of caches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/error.h"
#include "engine/text/tokenizer.h"
#include "tasks/framing.h"
#include "tasks/scorers.h"

namespace kveval {

// One question with a known answer.
struct Sample {
  std::string item_key;    // XXH3-128 of (task, version, parameters, seed, length, haystack, index): the same
                           // for every tokenizer
  std::string prompt_sha;  // XXH3-128 of (prefix ids, question ids, target ids)
  int index = 0;           // within its haystack
  std::optional<int> stratum;   // depth stratum, 0 = start
  std::optional<double> depth;  // where the evidence really is, share of the prefix's tokens, 0..1
  std::string question;         // text of the branch, template and answer prefix included
  std::string expected;         // the answer as text
  Tokens question_tokens;       // the branch
  Tokens target;                // the answer as it follows the question
};

// One haystack and the questions on it: shares a prefix, is a statistical cluster.
struct SampleGroup {
  std::string task;
  int task_version = 0;
  int length = 0;    // the cell: prefix + longest question + answer room never exceed it
  int haystack = 0;  // index within the cell
  Tokens prefix;     // may end a little earlier than its text: tasks/framing.h
  std::string prefix_text;
  std::vector<Sample> samples;
  std::string prefix_sha;  // XXH3-128 of the prefix ids
  Tokens stop_tokens;      // end an answer besides EOS: Decoding::stop_tokens
};

// Which haystack of which cell; everything a group's content depends on besides its framing.
struct GroupSpec {
  std::string task;
  std::string parameters;  // canonical JSON of the family's parameters
  int length = 0;
  int haystack = 0;
  uint64_t seed = 0;
};

struct Task {
  std::string name;  // "niah"
  int version = 0;   // raised whenever the generated text changes
  std::string summary;
  Scorer primary = Scorer::strict;
  int max_answer_tokens = 0;
  std::vector<std::string> stop_strings;
  // Throws Error{usage} when the length cannot hold the task, naming the shortest that can.
  std::function<SampleGroup(const GroupSpec&, const Framing&)> make_group;
  // Fills in defaults and refuses unknown or out-of-range parameters by name; returns canonical JSON.
  std::function<std::string(const nlohmann::json&)> resolve_parameters;
};

std::span<const Task> all_tasks();
const Task& task_named(std::string_view name);  // throws Error{usage} listing the names there are

}  // namespace kveval
