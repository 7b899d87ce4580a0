// kveval report RUN -o report.html: the whole run as one page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "engine/error.h"
#include "harness/commands/commands.h"
#include "harness/store.h"
#include "reports/comparison.h"
#include "reports/html.h"

namespace kveval {
namespace {

struct Options {
  std::string run = "latest";
  std::string output = "report.html";
};

[[noreturn]] void fail_to_write(const std::string& target) {
  throw Error(ErrorKind::run, fmt::format("cannot write the report to {}", target),
              "check that the folder exists, is writable and has space, or choose another file with -o");
}

void write_stream(const std::filesystem::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) fail_to_write(path.string());
}

// Beside the target and then renamed, so that a full disk never leaves half a page where a whole one stood. A
// link is followed; a pipe or a device is written to, not replaced.
void write_file(const std::filesystem::path& output, const std::string& content) {
  namespace fs = std::filesystem;
  std::error_code failure;
  fs::path path = fs::weakly_canonical(output, failure);
  if (failure) path = output;
  if (fs::exists(path, failure) && !fs::is_regular_file(path, failure)) return write_stream(path, content);
  fs::path part = path;
  part += ".part";
  try {
    write_stream(part, content);
    fs::rename(part, path);
  } catch (const std::exception&) {
    fs::remove(part, failure);
    fail_to_write(output.string());
  }
}

void report_command(const Options& options, const Context& context) {
  const Store store = open_store(context, Store::Mode::read_only);
  const RunRecord run = store.find_run(options.run);
  const std::vector<ArmData> arms = load_run(store, run);
  const std::string page = render_html(run, arms, comparisons_of(arms));
  if (options.output == "-") {
    if (std::fwrite(page.data(), 1, page.size(), stdout) != page.size() || std::fflush(stdout) != 0) {
      fail_to_write("standard output");
    }
    return;
  }
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::error_code missing;
    if (std::filesystem::equivalent(options.output, store.path().string() + suffix, missing)) {
      throw Error(ErrorKind::usage,
                  fmt::format("'{}' is the database the report is made from", options.output),
                  "name another file with -o");
    }
  }
  write_file(options.output, page);
  if (!context.quiet) fmt::print(stderr, "wrote {} ({} KB)\n", options.output, (page.size() + 999) / 1000);
}

}  // namespace

void add_report_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("report", "Write a run as one self-contained HTML page");
  command->add_option("run", options->run, "the run: an id, a unique part of one, or 'latest'")
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "the file to write, '-' for standard output")
      ->capture_default_str();
  command->callback([options, &context] { report_command(*options, context); });
}

}  // namespace kveval
