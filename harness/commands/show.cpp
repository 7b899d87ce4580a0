// kveval show RUN|SAMPLE: one run's facts, or one question with every profile's answer.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/error.h"
#include "harness/commands/commands.h"
#include "harness/commands/show_layers.h"
#include "harness/commands/terminal_table.h"
#include "harness/progress.h"
#include "reports/text.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

constexpr size_t kSurroundings = 200;  // bytes of the haystack shown on each side of the needle
constexpr size_t kLine = 400;          // characters of model output shown
constexpr size_t kShortestKey = 6;     // hex digits that may stand for an item key

struct ShowOptions {
  std::string what = "latest";
  bool samples = false;
  bool layers = false;
  bool json = false;
};

// Every arm's view of the run's questions, in the order that numbers them.
struct RunView {
  RunRecord run;
  std::vector<ArmRecord> arms;
  std::vector<std::vector<SampleView>> samples;  // [arm][question]
  size_t questions() const { return samples.empty() ? 0 : samples.front().size(); }
};

RunView load(const Store& store, const RunRecord& run) {
  RunView view{run, store.arms(run.id), {}};
  for (const ArmRecord& arm : view.arms) {
    std::vector<SampleView>& all = view.samples.emplace_back(store.samples(arm.id));
    const auto same_item = [](const SampleView& a, const SampleView& b) { return a.item.id == b.item.id; };
    const std::vector<SampleView>& first = view.samples.front();
    if (!std::equal(all.begin(), all.end(), first.begin(), first.end(), same_item)) {
      throw Error(ErrorKind::bad_file,
                  fmt::format("'{}' is damaged: the profiles of run {} answer different questions",
                              store.path().string(), run.id),
                  "restore it from a backup, or run again into a new file");
    }
  }
  return view;
}

template <class T>
Json maybe(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

const char* mark_of(const SampleRecord& sample) {
  if (sample.state == SampleState::error) return "error";
  return *sample.correct ? "right" : "wrong";
}

// ---- a run

struct CellTally {
  int right = 0, scored = 0, errors = 0;
};
using Cell = std::pair<std::string, int>;

std::map<Cell, CellTally> tally_cells(const std::vector<SampleView>& samples) {
  std::map<Cell, CellTally> cells;
  for (const SampleView& view : samples) {
    CellTally& cell = cells[{view.task, view.length}];
    if (view.sample.state == SampleState::error) {
      ++cell.errors;
    } else {
      ++cell.scored;
      cell.right += *view.sample.correct ? 1 : 0;
    }
  }
  return cells;
}

Json run_json(const RunView& view, size_t groups_done) {
  const RunRecord& run = view.run;
  Json arms = Json::array();
  for (size_t a = 0; a < view.arms.size(); ++a) {
    const ArmRecord& arm = view.arms[a];
    Json cells = Json::array();
    for (const auto& [cell, tally] : tally_cells(view.samples[a])) {
      cells.push_back({{"task", cell.first},
                       {"length", cell.second},
                       {"right", tally.right},
                       {"scored", tally.scored},
                       {"errors", tally.errors}});
    }
    arms.push_back({{"name", arm.name},
                    {"baseline", arm.baseline},
                    {"profile", Json::parse(arm.profile_json, nullptr, false)},
                    {"profile_hash", arm.profile_hash},
                    {"cache_bytes_per_token", arm.cache_bytes_per_token},
                    {"cells", cells}});
  }
  return {{"schema", "kveval.show-run/1"},
          {"id", run.id},
          {"status", name_of(run.status)},
          {"groups_done", groups_done},
          {"groups_planned", run.groups_planned},
          {"suite", Json::parse(run.suite_json, nullptr, false)},
          {"suite_hash", run.suite_hash},
          {"config", Json::parse(run.config_json, nullptr, false)},
          {"config_hash", run.config_hash},
          {"model", run.model},
          {"model_hash", run.model_hash},
          {"tokenizer_hash", run.tokenizer_hash},
          {"template_hash", run.template_hash},
          {"compute", run.compute},
          {"cache_mode", run.cache_mode},
          {"seed", run.seed},
          {"started_ms", run.started_ms},
          {"finished_ms", maybe(run.finished_ms)},
          {"tool_version", run.tool_version},
          {"git_sha", run.git_sha},
          {"git_dirty", maybe(run.git_dirty)},
          {"host", run.host},
          {"cpu", run.cpu},
          {"simd", run.simd},
          {"threads", run.threads},
          {"argv", Json::parse(run.argv_json, nullptr, false)},
          {"arms", arms}};
}

std::string chat_text(const RunRecord& run) {
  const Json config = Json::parse(run.config_json, nullptr, false);
  const Json family = config.is_object() ? config.value("chat_family", Json()) : Json();
  return fmt::format("{} ({})", family.is_string() ? family.get<std::string>() : "plain", run.template_hash);
}

std::string command_line(const RunRecord& run) {
  const Json argv = Json::parse(run.argv_json, nullptr, false);
  std::string line;
  for (const Json& word : argv) {
    if (word.is_string()) line += fmt::format("{}{}", line.empty() ? "" : " ", word.get<std::string>());
  }
  return line;
}

void print_facts(const RunView& view, size_t groups_done) {
  const RunRecord& run = view.run;
  const auto fact = [](const char* name, const std::string& value) {
    if (!value.empty()) fmt::print("{:<10} {}\n", name, printable(value, kLine));
  };
  fact("run", run.id);
  fact("status", fmt::format("{}, {} of {} groups", name_of(run.status), groups_done, run.groups_planned));
  fact("suite", fmt::format("{} ({}), seed {}", run.suite, run.suite_hash, run.seed));
  fact("model", fmt::format("{} ({})", run.model, run.model_hash));
  fact("tokenizer", run.tokenizer_hash);
  fact("template", chat_text(run));
  fact("arithmetic", fmt::format("{}, cache {}", run.compute, run.cache_mode));
  fact("started", utc_text(run.started_ms));
  if (run.finished_ms) {
    fact("finished", fmt::format("{}, {} after the start", utc_text(*run.finished_ms),
                                 format_duration(double(*run.finished_ms - run.started_ms) / 1e3)));
  }
  const std::string dirty = run.git_dirty.value_or(false) ? " with changes" : "";
  fact("kveval", fmt::format("{} {}{}", run.tool_version, run.git_sha, dirty));
  fact("machine", fmt::format("{}, {}, {}, {} threads", run.host, run.cpu, run.simd, run.threads));
  fact("command", command_line(run));
}

void print_accuracy(const RunView& view) {
  std::vector<TextTable::Column> columns = {{"profile"}, {"bytes a token", Align::right}};
  const auto cells = view.samples.empty() ? std::map<Cell, CellTally>() : tally_cells(view.samples.front());
  for (const auto& [cell, tally] : cells) {
    columns.push_back(
        {fmt::format("{} {}", printable(cell.first, 24), length_label(cell.second)), Align::right});
  }
  TextTable table(columns);
  for (size_t a = 0; a < view.arms.size(); ++a) {
    std::vector<std::string> row = {
        printable(view.arms[a].name, 60) + (view.arms[a].baseline ? " (base)" : ""),
        fmt::format("{:.0f}", view.arms[a].cache_bytes_per_token)};
    for (const auto& [cell, tally] : tally_cells(view.samples[a])) {
      std::string text = fmt::format("{}/{}", tally.right, tally.scored);
      if (tally.errors > 0) text += fmt::format(" +{} errors", tally.errors);
      row.push_back(text);
    }
    table.add(row);
  }
  fmt::print("\n{}", table.text());
}

void print_samples(const RunView& view) {
  std::vector<TextTable::Column> columns = {
      {"#", Align::right},     {"key"},     {"cell"}, {"haystack", Align::right},
      {"depth", Align::right}, {"expected"}};
  for (const ArmRecord& arm : view.arms) columns.push_back({printable(arm.name, 24)});
  TextTable table(columns);
  for (size_t i = 0; i < view.questions(); ++i) {
    const SampleView& first = view.samples.front()[i];
    std::vector<std::string> row = {
        std::to_string(i + 1),
        printable(first.item.item_key, 12),
        fmt::format("{} {}", printable(first.task, 24), length_label(first.length)),
        std::to_string(first.haystack),
        first.item.depth ? percent(*first.item.depth) : kNone,
        printable(first.item.expected, 24)};
    for (const std::vector<SampleView>& arm : view.samples) row.emplace_back(mark_of(arm[i].sample));
    table.add(row);
  }
  fmt::print("\n{}", table.text());
}

void show_run(const Store& store, const RunRecord& run, const ShowOptions& options, const Context& context) {
  if (options.layers) {
    const std::vector<ArmData> arms = load_run(store, run);
    return options.json ? print_layers_json(run, arms) : print_layers(arms);
  }
  const RunView view = load(store, run);
  const size_t done = store.done_groups(run.id).size();
  if (options.json) return print_json(run_json(view, done));
  print_facts(view, done);
  print_accuracy(view);
  if (options.samples) print_samples(view);
  if (!options.samples && !context.quiet) {
    fmt::print(stderr,
               "\n'kveval show {} --samples' lists the questions, 'kveval show {}:1' shows the first\n",
               run.id, run.id);
  }
}

// ---- a sample

// The haystack around the place that answers the question: where `expected` stands, nearest to the stored
// depth.
struct Surroundings {
  std::string before, needle, after;
};

std::optional<Surroundings> surroundings(const std::string& text, const ItemRecord& item) {
  if (item.expected.empty()) return std::nullopt;
  const double wanted = item.depth.value_or(0) * double(text.size());
  size_t best = std::string::npos;
  for (size_t at = text.find(item.expected); at != std::string::npos; at = text.find(item.expected, at + 1)) {
    if (best == std::string::npos || std::abs(double(at) - wanted) < std::abs(double(best) - wanted))
      best = at;
  }
  if (best == std::string::npos) return std::nullopt;
  // Whole UTF-8 characters: continuation bytes are 10xxxxxx.
  const auto is_inside = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  size_t begin = best > kSurroundings ? best - kSurroundings : 0;
  while (is_inside(begin)) ++begin;
  const size_t end = best + item.expected.size();
  size_t stop = std::min(text.size(), end + kSurroundings);
  while (is_inside(stop)) --stop;
  return Surroundings{text.substr(begin, best - begin), item.expected, text.substr(end, stop - end)};
}

Json sample_json(const RunView& view, size_t index, const std::optional<Surroundings>& around) {
  const SampleView& first = view.samples.front()[index];
  Json answers = Json::array();
  for (size_t a = 0; a < view.arms.size(); ++a) {
    const SampleRecord& sample = view.samples[a][index].sample;
    answers.push_back({{"profile", view.arms[a].name},
                       {"baseline", view.arms[a].baseline},
                       {"state", sample.state == SampleState::ok ? "ok" : "error"},
                       {"correct", maybe(sample.correct)},
                       {"strict", maybe(sample.strict)},
                       {"first", maybe(sample.first)},
                       {"contains", maybe(sample.contains)},
                       {"output", sample.output},
                       {"output_tokens", sample.output_tokens},
                       {"stop", sample.stop},
                       {"gold_nll", maybe(sample.gold_nll)},
                       {"kl", maybe(sample.kl)},
                       {"top1_agreement", maybe(sample.top1_agreement)},
                       {"first_divergence", maybe(sample.first_divergence)},
                       {"milliseconds", sample.milliseconds},
                       {"error", sample.error}});
  }
  return {{"schema", "kveval.show-sample/1"},
          {"run", view.run.id},
          {"number", index + 1},
          {"item_key", first.item.item_key},
          {"prompt_sha", first.item.prompt_sha},
          {"task", first.task},
          {"task_version", first.task_version},
          {"length", first.length},
          {"haystack", first.haystack},
          {"index", first.item.index},
          {"stratum", maybe(first.item.stratum)},
          {"depth", maybe(first.item.depth)},
          {"question", first.item.question},
          {"expected", first.item.expected},
          {"before", around ? Json(around->before) : Json()},
          {"after", around ? Json(around->after) : Json()},
          {"answers", answers}};
}

void print_sample(const RunView& view, size_t index, const std::optional<Surroundings>& around,
                  const Context& context) {
  const SampleView& first = view.samples.front()[index];
  const bool color = use_color(context, stdout);
  fmt::print("sample     {}:{}  {}\n", view.run.id, index + 1, printable(first.item.item_key, 64));
  fmt::print("cell       {} {}, haystack {}, question {}{}\n", printable(first.task, 24),
             length_label(first.length), first.haystack, first.item.index,
             first.item.depth ? fmt::format(", depth {}", percent(*first.item.depth)) : "");
  if (around) {
    fmt::print("haystack   …{}{}{}{}{}…\n", printable(around->before, kLine), color ? "\033[1m" : "[",
               printable(around->needle, kLine), color ? "\033[0m" : "]", printable(around->after, kLine));
  }
  fmt::print("question   {}\n", printable(first.item.question, kLine));
  fmt::print("expected   {}\n\n", printable(first.item.expected, kLine));

  TextTable table({{"profile"},
                   {"answer"},
                   {""},
                   {"strict/first/contains"},
                   {"NLL", Align::right},
                   {"KL", Align::right},
                   {"same top token", Align::right},
                   {"differs at", Align::right},
                   {"stop"}});
  for (size_t a = 0; a < view.arms.size(); ++a) {
    const SampleRecord& sample = view.samples[a][index].sample;
    const std::string name = printable(view.arms[a].name, 60);
    if (sample.state == SampleState::error) {
      table.add({name, printable(sample.error, kLine), mark_of(sample)});
      continue;
    }
    const auto yes = [](const std::optional<bool>& value) { return value.value_or(false) ? "yes" : "no"; };
    table.add({name, printable(sample.output, kLine), mark_of(sample),
               fmt::format("{}/{}/{}", yes(sample.strict), yes(sample.first), yes(sample.contains)),
               small_text(sample.gold_nll), small_text(sample.kl),
               sample.top1_agreement ? percent(*sample.top1_agreement) : kNone,
               sample.first_divergence ? fmt::format("token {}", *sample.first_divergence) : kNone,
               sample.stop});
  }
  fmt::print("{}", table.text());
}

void show_sample(const Store& store, const RunView& view, size_t index, const ShowOptions& options,
                 const Context& context) {
  const ItemRecord& item = view.samples.front()[index].item;
  const auto around = surroundings(store.haystack(item.haystack_id).prefix_text, item);
  if (options.json) return print_json(sample_json(view, index, around));
  print_sample(view, index, around, context);
}

// "RUN:N": the N-th question of a run, counted from 1.
void show_numbered(const Store& store, const std::string& reference, std::string_view digits,
                   const ShowOptions& options, const Context& context) {
  const RunView view = load(store, store.find_run(reference));
  size_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc() || end != digits.data() + digits.size() || number < 1 ||
      number > view.questions()) {
    throw Error(ErrorKind::usage,
                fmt::format("run {} has questions 1 to {}, not '{}'", view.run.id, view.questions(), digits),
                fmt::format("'kveval show {} --samples' lists them", view.run.id));
  }
  show_sample(store, view, number - 1, options, context);
}

bool is_key_prefix(std::string_view text) {
  return text.size() >= kShortestKey && text.size() <= 32 &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Whether a question with such a key was found and shown.
bool show_keyed(const Store& store, const std::string& key, const ShowOptions& options,
                const Context& context) {
  const std::vector<std::string> runs = store.runs_with_item(key);
  if (runs.empty()) return false;
  const RunView view = load(store, store.find_run(runs.front()));
  const std::vector<SampleView>& questions = view.samples.front();
  const auto matches = [&](const SampleView& one) { return one.item.item_key.starts_with(key); };
  const auto found = std::find_if(questions.begin(), questions.end(), matches);
  if (found == questions.end()) return false;
  if (std::count_if(questions.begin(), questions.end(), matches) > 1) {
    throw Error(ErrorKind::usage,
                fmt::format("several questions of run {} have a key that begins with {}", view.run.id, key),
                "give more of the key");
  }
  if (runs.size() > 1 && !context.quiet) {
    fmt::print(stderr, "kveval: note: the newest of {} runs that ask this question\n", runs.size());
  }
  show_sample(store, view, static_cast<size_t>(found - questions.begin()), options, context);
  return true;
}

void show_command(const ShowOptions& options, const Context& context) {
  const Store store = open_store(context, Store::Mode::read_only);
  const size_t colon = options.what.rfind(':');
  if (colon != std::string::npos) {
    return show_numbered(store, options.what.substr(0, colon),
                         std::string_view(options.what).substr(colon + 1), options, context);
  }
  if (is_key_prefix(options.what) && show_keyed(store, options.what, options, context)) return;
  show_run(store, store.find_run(options.what), options, context);
}

}  // namespace

void add_show_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<ShowOptions>();
  CLI::App* command = app.add_subcommand("show", "Show a run, or one question with every profile's answer");
  command
      ->add_option(
          "what", options->what,
          "a run (an id, a unique part of one, or 'latest'), RUN:N for its N-th question, or the first "
          "digits of a question's key")
      ->capture_default_str();
  command->add_flag("--samples", options->samples, "list the run's questions");
  command->add_flag("--layers", options->layers, "what each profile did to every layer's keys and values");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &context] { show_command(*options, context); });
}

}  // namespace kveval
