// The program: options shared by every verb, signals, and exit codes.
//   0 done | 2 usage or file | 4 nothing to compare with | 5 run error | 130 interrupted
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "build_info.h"
#include "engine/error.h"
#include "engine/quote.h"
#include "harness/commands/commands.h"

namespace {

constexpr int kUsage = 2, kRunError = 5, kInterrupted = 130;

std::atomic<int> interrupts{0};
std::atomic<bool> ends_cleanly{false};

// The first signal lets a run mark where it stopped, and a bench say so. The second does not wait, nor does
// the first elsewhere: reading and planning leave nothing half done.
void on_interrupt(int) {
  if (interrupts.fetch_add(1) > 0 || !ends_cleanly.load()) _exit(kInterrupted);
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A file size limit then is a failed write with a message, not a silent death.
  std::signal(SIGXFSZ, SIG_IGN);
}

int exit_code_of(kveval::ErrorKind kind) {
  switch (kind) {
    case kveval::ErrorKind::usage:
    case kveval::ErrorKind::bad_file: return kUsage;
    case kveval::ErrorKind::no_baseline: return 4;
    case kveval::ErrorKind::run: return kRunError;
    case kveval::ErrorKind::cancelled: return kInterrupted;
  }
  return kRunError;
}

int fail(int code, const std::string& message, const std::string& hint) {
  fmt::print(stderr, "kveval: {}\n", message);
  if (!hint.empty()) fmt::print(stderr, "        {}\n", hint);
  return code;
}

// The words of the command as far as they name one: "kveval model inspect". CLI11 tells of a word that names
// none only as an argument too many.
struct Command {
  const CLI::App* app;
  std::string words;    // that name it
  std::string unknown;  // the next one, where a command should be named and none has that name
};

Command command_of(const CLI::App& app, int argc, char** argv) {
  Command command{&app, app.get_name(), {}};
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const std::vector<const CLI::App*> known = command.app->get_subcommands({});
    if (known.empty()) break;
    const auto next = std::ranges::find(known, argv[i], &CLI::App::get_name);
    if (next == known.end()) {
      command.unknown = argv[i];
      break;
    }
    command.app = *next;
    command.words += fmt::format(" {}", argv[i]);
  }
  return command;
}

int fail_to_parse(const CLI::App& app, int argc, char** argv, const std::string& message) {
  const Command command = command_of(app, argc, argv);
  if (command.unknown.empty())
    return fail(kUsage, message, fmt::format("'{} --help' lists what there is", command.words));
  std::vector<std::string> names;
  for (const CLI::App* known : command.app->get_subcommands({})) names.push_back(known->get_name());
  return fail(kUsage, "there is no command " + kveval::quote(command.unknown),
              fmt::format("behind '{}' come: {}", command.words, fmt::join(names, ", ")));
}

// A full disk behind a redirection must not pass for data that was written.
void check_stdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw kveval::Error(kveval::ErrorKind::run, "cannot write to standard output",
                      "check that its disk has space");
}

int run_program(int argc, char** argv) {
  kveval::Context context;
  context.argv.assign(argv, argv + argc);
  context.interrupts = &interrupts;
  context.ends_cleanly = &ends_cleanly;

  CLI::App app("kveval: is this quantized KV cache safe for long-context answers?", "kveval");
  app.fallthrough();
  // Not required by CLI11, which would then call an unknown verb a missing one.
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", fmt::format("kveval {}", kveval::build::kVersion));
  app.add_option("--db", context.db, "database of results")->envname("KVEVAL_DB")->capture_default_str();
  app.add_flag("-q,--quiet", context.quiet, "no progress, no advice: data only");
  app.add_option("--color", context.color, "when to use colour (NO_COLOR turns it off)")
      ->envname("KVEVAL_COLOR")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  kveval::add_run_command(app, context);
  kveval::add_resume_command(app, context);
  kveval::add_list_command(app, context);
  kveval::add_show_command(app, context);
  kveval::add_compare_command(app, context);
  kveval::add_report_command(app, context);
  kveval::add_bench_command(app, context);
  kveval::add_model_command(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) { return app.exit(help); } catch (const CLI::ParseError& error) {
    return fail_to_parse(app, argc, argv, error.what());
  }
  if (app.get_subcommands().empty()) {
    return fail(kUsage, "say what to do: run, resume, list, show, compare, report, bench or model",
                "'kveval --help' explains them");
  }
  check_stdout();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  install_signal_handlers();
  try {
    return run_program(argc, argv);
  } catch (const kveval::Error& error) {
    return fail(exit_code_of(error.kind), error.what(), error.hint);
  } catch (const std::bad_alloc&) {
    return fail(kRunError, "out of memory",
                "try shorter lengths, fewer threads or a machine with more memory");
  } catch (const std::exception& error) { return fail(kRunError, error.what(), {}); }
}
