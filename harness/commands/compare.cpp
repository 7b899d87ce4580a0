// kveval compare RUN [RUN2]: which answers changed, and whether that is more than chance.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/error.h"
#include "harness/commands/commands.h"
#include "harness/store.h"
#include "reports/comparison.h"
#include "reports/json.h"
#include "reports/terminal.h"

namespace kveval {
namespace {

struct Options {
  std::string run = "latest", second_run;
  std::string base, candidate;
  bool flips = false, json = false;
  double alpha = 0.05;
};

// What is missing could have changed the picture.
void note_incomplete(const Store& store, const RunRecord& run) {
  if (run.status == RunStatus::complete) return;
  fmt::print(stderr, "kveval: note: run {} has {} of {} groups; 'kveval resume {}' makes it whole\n", run.id,
             store.done_groups(run.id).size(), run.groups_planned, run.id);
}

void compare_command(const Options& options, const Context& context) {
  if (!(options.alpha > 0 && options.alpha < 1)) {
    throw Error(ErrorKind::usage, "--alpha must lie between 0 and 1", "0.05 is the default");
  }
  const Store store = open_store(context, Store::Mode::read_only);
  const RunRecord base_run = store.find_run(options.run);
  note_incomplete(store, base_run);
  const std::vector<ArmData> first = load_run(store, base_run);
  std::vector<Comparison> comparisons;
  if (options.second_run.empty()) {
    comparisons = compare_run(first, options.base, options.candidate);
  } else {
    const RunRecord candidate_run = store.find_run(options.second_run);
    note_incomplete(store, candidate_run);
    comparisons = compare_runs(first, load_run(store, candidate_run), options.base, options.candidate);
  }

  if (options.json) {
    fmt::print("{}", to_json(comparisons, options.alpha));
    return;
  }
  const TerminalStyle style{use_color(context, stdout), options.alpha};
  bool first_one = true;
  for (const Comparison& comparison : comparisons) {
    if (!context.quiet && !first_one) fmt::print("\n");
    fmt::print("{}", context.quiet ? render_line(comparison) : render_comparison(comparison, style));
    if (options.flips) fmt::print("{}{}", context.quiet ? "" : "\n", render_flips(comparison, style));
    first_one = false;
  }
}

}  // namespace

void add_compare_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("compare", "Compare the profiles of one run, or two runs, pair by pair");
  command
      ->add_option("run", options->run,
                   "the run, or the base of two: an id, a unique part of one, or 'latest'")
      ->capture_default_str();
  command->add_option("candidate-run", options->second_run, "a second run: its arms are the candidates");
  command->add_option("--base", options->base, "arm to compare with (default: the run's baseline)");
  command->add_option("--candidate", options->candidate, "arm to compare (default: every other)");
  command->add_flag("--flips", options->flips, "list each answer that became wrong or right");
  command->add_flag("--json", options->json, "print JSON (schema kveval.compare/1)");
  command->add_option("--alpha", options->alpha, "mark losses whose adjusted p is below this")
      ->capture_default_str();
  command->callback([options, &context] { compare_command(*options, context); });
}

}  // namespace kveval
