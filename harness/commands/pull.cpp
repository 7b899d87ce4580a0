#include "harness/commands/pull.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "embedded.h"
#include "engine/error.h"
#include "engine/model/catalog.h"
#include "reports/text.h"

extern char** environ;

namespace kveval {
namespace {

namespace fs = std::filesystem;

constexpr int kInterrupted = 130;

// The script and the catalogue it reads, where one finds the other as in the sources: the program can fetch
// from wherever it was installed to.
class ScriptFolder {
 public:
  ScriptFolder() {
    std::string name = (fs::temp_directory_path() / "kveval-fetch-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ErrorKind::run,
                  fmt::format("cannot make a folder in {}: {}", fs::temp_directory_path().string(),
                              std::strerror(errno)),
                  "set TMPDIR to a folder that can be written");
    folder_ = name;
    write(script(), embedded::scripts_fetch_model);
    write(folder_ / "engine" / "model" / "catalog.json", embedded::engine_model_catalog_json);
  }
  ~ScriptFolder() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  ScriptFolder(const ScriptFolder&) = delete;
  ScriptFolder& operator=(const ScriptFolder&) = delete;

  fs::path script() const { return folder_ / "scripts" / "fetch-model"; }
  fs::path messages() const { return folder_ / "messages"; }

 private:
  static void write(const fs::path& path, std::string_view text) {
    fs::create_directories(path.parent_path());
    std::ofstream file(path, std::ios::binary);
    file << text;
    if (!file.flush()) throw Error(ErrorKind::run, fmt::format("cannot write {}", path.string()));
  }
  fs::path folder_;
};

class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// In a process group of its own, so that an interruption reaches pip through wait_for() and only once.
pid_t start(std::vector<std::string> words, FileActions& files) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t process = 0;
  const int failed = posix_spawnp(&process, argv[0], files.get(), &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0)
    throw Error(ErrorKind::run, fmt::format("cannot start {}: {}", words[0], std::strerror(failed)),
                "fetching needs Python 3 with pip (Debian: python3-pip)");
  return process;
}

int wait_for(pid_t process, const Context& context) {
  int told = 0;
  for (;;) {
    int status = 0;
    if (waitpid(process, &status, WNOHANG) == process)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (context.interrupts != nullptr && context.interrupts->load() > told) {
      told = context.interrupts->load();
      kill(-process, SIGINT);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string last_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line)) last = line;
  const std::string_view said_by = "fetch-model: ";
  if (last.starts_with(said_by)) last.erase(0, said_by.size());
  return printable(last, 400);
}

void check_names(const std::vector<std::string>& names) {
  std::string known;
  for (const CatalogEntry& entry : catalog()) known += (known.empty() ? "" : ", ") + entry.name;
  for (const std::string& name : names) {
    if (find_in_catalog(name) != nullptr) continue;
    throw Error(
        ErrorKind::usage, fmt::format("there is no model '{}' to fetch, only {}", printable(name, 80), known),
        name.starts_with("phantom") ? "the phantom is built in" : "a file of your own is named by its path");
  }
}

}  // namespace

void pull_models(const std::vector<std::string>& names, bool print_paths, const Context& context) {
  check_names(names);
  for (const std::string& name : names) catalog_path(name);  // says so when there is no place for it
  const ScriptFolder folder;
  std::vector<std::string> words = {"python3", folder.script().string()};
  words.insert(words.end(), names.begin(), names.end());
  FileActions files;
  if (context.quiet)
    posix_spawn_file_actions_addopen(files.get(), STDERR_FILENO, folder.messages().c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (!print_paths) posix_spawn_file_actions_adddup2(files.get(), STDERR_FILENO, STDOUT_FILENO);

  if (context.ends_cleanly != nullptr) context.ends_cleanly->store(true);
  const int code = wait_for(start(std::move(words), files), context);
  if (context.ends_cleanly != nullptr) context.ends_cleanly->store(false);
  if (code == 0) return;
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : " ") + name;
  const std::string hint = fmt::format("'kveval model pull {}' goes on with the pieces that came", list);
  if (code == kInterrupted) throw Error(ErrorKind::cancelled, "the fetch was interrupted", hint);
  const std::string why = context.quiet ? ": " + last_line(folder.messages()) : ", for the reason above";
  throw Error(ErrorKind::run, fmt::format("{} could not be fetched{}", list, why), hint);
}

std::shared_ptr<const Model> load_or_pull(const std::string& model, const Context& context) {
  std::error_code missing;
  if (find_in_catalog(model) != nullptr && !fs::exists(catalog_path(model), missing)) {
    if (!context.quiet) fmt::print(stderr, "kveval: {} is not here yet: fetching it once\n", model);
    pull_models({model}, false, context);
  }
  return load_model(model);
}

}  // namespace kveval
