// The verbs of the program, one file each. A registration adds its subcommand, options and callback; the
// callback prints data on stdout and messages on stderr, and throws Error for what cannot be done.
#pragma once

#include <atomic>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "harness/store.h"

namespace CLI {
class App;
}

namespace kveval {

// What every verb shares: the options of the whole program.
struct Context {
  std::string db = "kveval.db";  // --db, KVEVAL_DB
  bool quiet = false;            // -q: data only, no progress, no advice
  std::string color = "auto";    // --color: auto | always | never
  std::vector<std::string> argv;
  std::atomic<int>* interrupts = nullptr;  // SIGINT and SIGTERM so far
  // True while a first signal ends a run or a bench cleanly; otherwise it ends the process at once.
  std::atomic<bool>* ends_cleanly = nullptr;
};

void add_run_command(CLI::App& app, Context& context);
void add_resume_command(CLI::App& app, Context& context);
void add_list_command(CLI::App& app, Context& context);
void add_show_command(CLI::App& app, Context& context);
void add_compare_command(CLI::App& app, Context& context);
void add_report_command(CLI::App& app, Context& context);
void add_bench_command(CLI::App& app, Context& context);
void add_model_command(CLI::App& app, Context& context);

// Opens the database of the context and says on stderr what the user should know about it.
Store open_store(const Context& context, Store::Mode mode);

// On stdout, indented. Bytes that are not UTF-8, which a model may write, become U+FFFD: JSON cannot hold
// them.
void print_json(const nlohmann::json& document);

// --color, NO_COLOR and whether `stream` is a terminal.
bool use_color(const Context& context, std::FILE* stream);

}  // namespace kveval
