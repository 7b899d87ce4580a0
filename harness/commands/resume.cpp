// kveval resume [RUN]: goes on with a run that was interrupted, failed or killed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/compute.h"
#include "engine/error.h"
#include "harness/commands/commands.h"
#include "harness/commands/session.h"
#include "harness/environment.h"
#include "harness/progress.h"
#include "harness/record.h"
#include "reports/text.h"
#include "tasks/suite.h"

namespace kveval {
namespace {

struct ResumeOptions {
  std::string run;  // empty: the newest that is not complete
  EngineSettings engine;
};

// A newer kveval may well give other bits; the tasks' and the model's identities are checked, the code's is
// only told.
void note_other_version(const RunRecord& run, const Environment& environment, const Context& context) {
  const bool same = run.tool_version == environment.tool_version && run.git_sha == environment.git_sha;
  if (same || context.quiet) return;
  fmt::print(stderr, "kveval: note: run {} began with kveval {} ({}), this is {} ({})\n", run.id,
             printable(run.tool_version, 40), printable(run.git_sha, 12), environment.tool_version,
             printable(environment.git_sha, 12));
}

// The plan's estimate is of the whole run: what is left of it is what the user waits for.
void print_rest(const Plan& plan, const std::vector<std::string>& done) {
  double seconds = 0;
  for (const PlannedGroup& group : plan.groups) {
    const std::string key = group_key(group.spec.task, group.spec.length, group.spec.haystack);
    if (std::find(done.begin(), done.end(), key) != done.end()) continue;
    for (const Estimate& estimate : plan.cells[group.cell].per_arm) seconds += estimate.seconds();
  }
  fmt::print(stderr, "done     {} of {} groups, about {} left\n", done.size(), plan.groups.size(),
             format_duration(seconds));
}

void resume_command(const ResumeOptions& options, const Context& context) {
  Store store = open_store(context, Store::Mode::update);
  const Environment environment = this_environment(context.argv);
  const RunRecord run = find_resumable(store, options.run, environment, now_ms());
  note_other_version(run, environment, context);

  const RunConfig config = config_of(run);
  const Suite suite = suite_from_json(run.suite_json);
  EngineSettings settings = options.engine;
  // An arithmetic that this version does not know is refused by check_same, as any other than the run's.
  settings.compute = compute_named(run.compute).value_or(Compute::float32);
  const std::unique_ptr<Engine> engine = open_engine(config.model, settings, context);
  const ChatTemplate chat = chat_of(engine->describe(), config.chat);
  check_same(run, suite, chat, engine->describe());
  const Plan plan = make_plan(suite, chat, plan_arms(config.profiles, *engine), *engine,
                              known_speeds(engine->describe(), context));
  const std::vector<ArmRecord> arms = store.arms(run.id);
  check_arms(run, arms, plan);
  if (!context.quiet) {
    print_plan(plan, engine->describe(), settings, context, stderr);
    print_rest(plan, store.done_groups(run.id));
  }

  store.claim(run.id, environment.host, environment.pid, now_ms());
  carry_out(store, run.id, arms, plan, *engine, context);
}

}  // namespace

void add_resume_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<ResumeOptions>();
  CLI::App* command = app.add_subcommand("resume", "Go on with an interrupted run, to the same results");
  command->add_option("run", options->run,
                      "the run: an id, a unique part of one, or 'latest' (default: the newest "
                      "that is not complete)");
  add_engine_options(*command, options->engine);
  command->callback([options, &context] { resume_command(*options, context); });
}

}  // namespace kveval
