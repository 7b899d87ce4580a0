// kveval report RUN -o report.html: the whole run as one page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
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

// Beside the target and then renamed, so that a full disk never leaves half a page where a whole one stood.
void write_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::path part = path;
  part += ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  std::error_code failure;
  if (file) std::filesystem::rename(part, path, failure);
  if (file && !failure) return;
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  throw Error(ErrorKind::run, fmt::format("cannot write the report to {}", path.string()),
              "check that the folder exists, is writable and has space, or choose another file with -o");
}

void report_command(const Options& options, const Context& context) {
  const Store store = open_store(context, Store::Mode::read_only);
  const RunRecord run = store.find_run(options.run);
  const std::vector<ArmData> arms = load_run(store, run);
  // A run of one profile, or one interrupted before its first haystack, still has a page.
  const bool comparable = arms.size() > 1 && std::any_of(arms.begin(), arms.end(), [](const ArmData& data) {
                            return data.arm.baseline && !data.samples.empty();
                          });
  const std::string page = render_html(run, arms, comparable ? compare_run(arms) : std::vector<Comparison>{});
  if (options.output == "-") {
    std::fwrite(page.data(), 1, page.size(), stdout);
    return;
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
