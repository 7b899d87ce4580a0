#include "harness/environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "build_info.h"

namespace kveval {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// The kernel's short name of a process; empty when there is none or /proc cannot tell.
std::string program_of(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
}

// Killed, and not yet collected by its parent: a container without an init may keep it for ever.
bool is_zombie(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');  // "PID (NAME) STATE ...", and a name may hold anything
  return name_end != std::string::npos && stat.compare(name_end, 3, ") Z") == 0;
}

}  // namespace

Environment this_environment(const std::vector<std::string>& argv) {
  Environment environment;
  environment.tool_version = build::kVersion;
  environment.git_sha = build::kGitSha;
  if (!environment.git_sha.empty()) environment.git_dirty = build::kGitDirty;
  environment.host = host_name();
  environment.cpu = cpu_name();
  // An argument may hold any bytes; what is not UTF-8 is replaced.
  environment.argv_json = nlohmann::json(argv).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  environment.pid = getpid();
  return environment;
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string make_run_id(int64_t unix_ms) {
  std::random_device random;
  return fmt::format("{:%Y%m%d-%H%M%S}-{:04x}", fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)),
                     random() & 0xFFFFU);
}

size_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

bool is_running_elsewhere(int64_t pid) {
  if (pid <= 0 || pid == getpid()) return false;
  if (kill(static_cast<pid_t>(pid), 0) != 0 && errno != EPERM) return false;
  if (is_zombie(pid)) return false;
  // Ids are used again, above all in containers: another program under that id is not the run.
  const std::string theirs = program_of(pid), ours = program_of(getpid());
  return theirs.empty() || ours.empty() || theirs == ours;
}

}  // namespace kveval
