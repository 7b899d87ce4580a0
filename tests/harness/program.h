// The program itself, started as a user starts it.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/harness/fixtures.h"

namespace kveval::testing {

struct Outcome {
  int code = -1;  // 128 + signal when one ended it
  std::string out, err;
};

inline std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A run of the program in a folder of its own, with no variables but those given, and the folder's file
// "stdin", if any, as its input.
class Program {
 public:
  Program(const TempFolder& folder, std::vector<std::string> arguments,
          const std::map<std::string, std::string>& environment = {})
      : folder_(folder) {
    arguments.insert(arguments.begin(), "kveval");
    pid_ = fork();
    if (pid_ != 0) return;
    if (fs::exists(folder / "stdin")) redirect(0, folder / "stdin", O_RDONLY);
    redirect(1, folder / "stdout");
    redirect(2, folder / "stderr");
    if (chdir(folder.path().c_str()) != 0) _exit(99);
    clearenv();
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(KVEVAL_BINARY, argv.data());
    _exit(99);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }

  Outcome wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read(folder_ / "stdout"), read(folder_ / "stderr")};
  }

 private:
  static void redirect(int to, const fs::path& path, int flags = O_WRONLY | O_CREAT | O_TRUNC) {
    const int file = open(path.c_str(), flags, 0600);
    if (file < 0 || dup2(file, to) < 0) _exit(99);
  }

  const TempFolder& folder_;
  pid_t pid_ = 0;
};

inline Outcome kveval(const TempFolder& folder, const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment = {}) {
  return Program(folder, arguments, environment).wait();
}

inline std::vector<std::string> with(std::vector<std::string> arguments,
                                     const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace kveval::testing
