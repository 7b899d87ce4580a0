// Memory at long contexts: what the process holds at most, as the kernel counts it.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "engine/cpu/cpu_engine.h"
#include "engine/model/catalog.h"
#include "engine/random.h"

namespace kveval {
namespace {

// A line of /proc/self/status, in bytes: "VmHWM:    12345 kB".
double status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return 1024 * std::stod(line.substr(name.size() + 1));
  return 0;
}

// As many threads as any machine has: each brings working space of its own.
constexpr int kThreads = 2;

// The most memory that reading `tokens` adds to a process with a loaded model, less the cache's share.
double measure(size_t tokens) {
  const auto engine = make_cpu_engine(load_model("phantom"), {.threads = kThreads});
  PromptGroup group;
  Random random(1);
  for (size_t i = 0; i < tokens; i++)
    group.prefix.tokens.push_back(Token(random.below(uint64_t(engine->describe().vocabulary))));
  group.branches.push_back({{Turn{{1}, {}, Ask::generate, {}}}});
  Decoding decoding;
  decoding.max_tokens = 2;
  const Profile profile = parse_profile("fp16");
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM begins anew
  const double before = status_bytes("VmRSS");
  engine->run(group, decoding, profile, {});
  const double cache = double(engine->estimate({tokens, 1, 3, 2}, profile).cache_bytes);
  return status_bytes("VmHWM") - before - cache;
}

// In a process of its own, which starts with the same memory for every length.
double bytes_beside_cache(size_t tokens) {
  int ends[2];
  if (pipe(ends) != 0) return -1e18;
  const pid_t child = fork();
  if (child == 0) {
    try {
      const double beside = measure(tokens);
      _exit(write(ends[1], &beside, sizeof beside) == sizeof beside ? 0 : 1);
    } catch (...) { _exit(2); }
  }
  close(ends[1]);  // a child that dies ends the reading
  int status = -1;
  waitpid(child, &status, 0);
  double beside = -1e18;
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(ends[0], &beside, sizeof beside), ssize_t(sizeof beside));
  close(ends[0]);
  return beside;
}

TEST(MemorySlow, IsTheCacheAndAConstant) {
  if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush))
    GTEST_SKIP() << "the kernel does not let VmHWM begin anew here";
  const double at_32k = bytes_beside_cache(size_t{32} << 10), at_128k = bytes_beside_cache(size_t{128} << 10);
  RecordProperty("beside_the_cache_32k", std::to_string(at_32k / 1e6));
  RecordProperty("beside_the_cache_128k", std::to_string(at_128k / 1e6));
  // Activations of one chunk, scratch and span states: 18 and 19 MB measured. Anything of the prompt's length
  // would show: 96K tokens more of one row of the residual stream are 200 MB.
  EXPECT_LT(at_128k, 48e6);
  EXPECT_LT(at_128k - at_32k, 16e6);
  EXPECT_GT(at_32k, -16e6) << "the cache, 34 MB, is in what the kernel counts";
}

}  // namespace
}  // namespace kveval
