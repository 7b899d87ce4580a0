// What 'kveval bench' measured, and how it shows it.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/cpu/ceilings.h"
#include "engine/engine.h"
#include "engine/profile.h"

namespace kveval {

// Of one profile at one length; each list has one entry a round.
struct Measurement {
  Profile profile;
  size_t tokens = 0;
  double cache_bytes = 0;  // a token

  double prefill_flops = 0;
  std::vector<double> prefill_seconds;
  double decode_flops = 0;             // a token
  double decode_bytes = 0;             // of the middle one: each reads more than the one before
  std::vector<double> decode_seconds;  // a token
  std::vector<double> prefill_cpu_seconds, decode_cpu_seconds;  // user time of all threads; of all tokens

  // A group of questions on the prompt.
  double questions_flops = 0;  // of prompt and questions
  std::vector<double> questions_seconds, questions_prefix_seconds;
};

struct BenchResult {
  EngineInfo engine;
  cpu::Ceilings ceilings;
  int decoded_tokens = 0;
  int rounds = 0;
  int questions = 0;  // 0: not measured
  std::vector<Measurement> all;
};

double median(std::vector<double> values);  // not empty; of an even number the mean of the middle two

double prefill_tokens_per_second(const Measurement& m);
double decode_tokens_per_second(const Measurement& m);

// Shares of what the machine can do. Decoding is bound by reading or by arithmetic, whichever takes longer.
double prefill_of_ceiling(const Measurement& m, const cpu::Ceilings& ceilings);
double decode_of_ceiling(const Measurement& m, const cpu::Ceilings& ceilings);
// What the questions' group costs over its prompt alone, as measured, by the same as counted in FLOPs.
double questions_of_model(const Measurement& m);

std::string bench_table(const BenchResult& result);    // with a line of its own on top
nlohmann::json bench_json(const BenchResult& result);  // kveval.bench/1

}  // namespace kveval
