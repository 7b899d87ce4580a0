#include "engine/cpu/cpu_engine.h"

#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>

#include "engine/cpu/branches.h"
#include "engine/cpu/cost.h"
#include "engine/cpu/forward.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"
#include "engine/kv/cache.h"

namespace kveval {

namespace {

using namespace cpu;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

CpuEngineOptions checked(CpuEngineOptions options) {
  if (options.threads == 0) options.threads = usable_cores();
  if (options.threads < 1 || options.threads > 1024) {
    throw Error(ErrorKind::usage,
                fmt::format("{} threads: use 1 to 1024, or 0 for all cores", options.threads));
  }
  if (options.chunk_tokens < 1 || options.chunk_tokens > kMaxChunkTokens) {
    throw Error(ErrorKind::usage,
                fmt::format("a chunk of {} tokens: use 1 to {}", options.chunk_tokens, kMaxChunkTokens));
  }
  if (options.page_tokens != 64 && options.page_tokens != 128 && options.page_tokens != 256) {
    throw Error(ErrorKind::usage,
                fmt::format("a page of {} tokens: use 64, 128 or 256", options.page_tokens));
  }
  if (options.max_branches < 0) {
    throw Error(ErrorKind::usage,
                fmt::format("{} branches together: use 0 (all) or more", options.max_branches));
  }
  return options;
}

// One thing a group asks for that no engine could answer.
void check_turn(const Turn& turn, int vocabulary, const std::string& where) {
  const auto check_tokens = [&](const Tokens& tokens) {
    for (const Token token : tokens) {
      if (token < 0 || token >= vocabulary) {
        throw Error(ErrorKind::usage,
                    fmt::format("{} holds token {}, the vocabulary has {}", where, token, vocabulary));
      }
    }
  };
  if (turn.tokens.empty()) throw Error(ErrorKind::usage, where + " has no tokens");
  check_tokens(turn.tokens);
  check_tokens(turn.target);
  if (turn.ask == Ask::score && turn.target.empty()) {
    throw Error(ErrorKind::usage, where + " asks to score an empty target");
  }
}

void check_group(const PromptGroup& group, int vocabulary, size_t context) {
  if (!group.prefix.tokens.empty()) check_turn(group.prefix, vocabulary, "the prefix");
  if (group.prefix.ask != Ask::nothing) {
    throw Error(ErrorKind::usage, "the prefix asks something: ask in a branch");
  }
  if (group.prefix.tokens.size() > context) {
    throw Error(ErrorKind::run, fmt::format("the prefix has {} tokens, the model's context holds {}",
                                            group.prefix.tokens.size(), context));
  }
  for (size_t b = 0; b < group.branches.size(); b++) {
    const auto& turns = group.branches[b].turns;
    for (size_t t = 0; t < turns.size(); t++)
      check_turn(turns[t], vocabulary, fmt::format("branch {} turn {}", b, t));
  }
}

// A model that produces NaN or infinity has no answer that says anything about its cache, and formats differ
// in what they make of such a value. One that only overflows its format (fp16 ends at 65504) fails as it
// would in a server, but with the reason.
void check_finite(std::span<const CacheDiagnostic> diagnostics, const Profile& profile,
                  const std::string& model) {
  for (const CacheDiagnostic& d : diagnostics) {
    const char* part = d.keys ? "keys" : "values";
    if (!std::isfinite(d.energy)) {
      throw Error(ErrorKind::run,
                  fmt::format("{}: layer {} made {} that are not finite numbers", model, d.layer, part),
                  "check the checkpoint: its answers mean nothing under any cache format");
    }
    if (!std::isfinite(d.error_energy)) {
      throw Error(ErrorKind::run,
                  fmt::format("profile '{}' overflows: {} of layer {} of {} reach {}", canonical(profile),
                              part, d.layer, model, d.absolute_max),
                  "leave the profile out, or keep the layer in another format");
    }
  }
}

// Adds `more` to `sum`: same layers, heads and parts in the same order.
void add(std::vector<CacheDiagnostic>& sum, std::span<const CacheDiagnostic> more) {
  if (sum.empty())
    sum.assign(more.begin(), more.end());
  else {
    for (size_t i = 0; i < more.size(); i++) {
      sum[i].elements += more[i].elements;
      sum[i].clipped += more[i].clipped;
      sum[i].flushed += more[i].flushed;
      sum[i].absolute_max = std::max(sum[i].absolute_max, more[i].absolute_max);
      sum[i].error_energy += more[i].error_energy;
      sum[i].energy += more[i].energy;
    }
  }
}

class CpuEngine final : public Engine {
 public:
  CpuEngine(std::shared_ptr<const Model> model, const CpuEngineOptions& options)
      : model_(std::move(model)),
        options_(checked(options)),
        kernels_(options.kernels ? *options.kernels : kernels(options.compute)),
        pool_(options_.threads),
        packed_(*model_, pool_),
        forward_(packed_, kernels_, pool_),
        shapes_(layer_shapes(model_->config)) {}

  EngineInfo describe() const override {
    const ModelConfig& config = model_->config;
    EngineInfo info;
    info.name = "cpu";
    info.model = model_->name;
    info.model_hash = model_->hash;
    info.context = config.context;
    info.vocabulary = config.vocabulary;
    info.layers = int(config.layers.size());
    info.tokenizer = model_->tokenizer.get();
    info.chat = &model_->chat;
    info.chat_error = model_->chat_error ? &*model_->chat_error : nullptr;
    info.concurrency = options_.max_branches;
    info.compute = name_of(kernels_.compute);
    info.simd = kernels_.name;
    info.threads = options_.threads;
    return info;
  }

  void check(const Profile& profile) const override {
    if (!profile.skip_layers.empty() && profile.skip_layers.back() >= int(shapes_.size())) {
      throw Error(ErrorKind::usage,
                  fmt::format("profile '{}' skips layer {}, {} has layers 0 to {}", canonical(profile),
                              profile.skip_layers.back(), model_->name, shapes_.size() - 1));
    }
    const bool wants_scales =
        profile.k.scale == ScaleAxis::checkpoint || profile.v.scale == ScaleAxis::checkpoint;
    if (wants_scales && model_->cache_scales.k.empty()) {
      throw Error(ErrorKind::usage,
                  fmt::format("profile '{}' takes its scales from the checkpoint, and {} has none",
                              canonical(profile), model_->name),
                  "profile e4m3 uses scale 1.0 instead, which is what vLLM does, with a warning");
    }
  }

  Profile resolve(const Profile& profile, std::span<const Tokens> calibration) override;
  Estimate estimate(const GroupShape& shape, const Profile& profile) const override;
  void run(const PromptGroup& group, const Decoding& decoding, const Profile& profile,
           const Events& events) override;

 private:
  // A prefix in its cache, which must outlive it: declared first, destroyed last.
  struct Prefilled {
    std::unique_ptr<kv::Cache> cache;
    kv::Sequence sequence;
  };

  using Fed = std::function<void(size_t tokens)>;

  std::unique_ptr<kv::Cache> make_cache(const Profile& profile) const {
    return std::make_unique<kv::Cache>(shapes_, profile, options_.page_tokens, kernels_.encode_row,
                                       wide_format(kernels_.compute));
  }
  Prefilled prefill(const Profile& profile, const Tokens& tokens, const Fed& fed);
  Prefilled transcoded(const Profile& profile, const Tokens& tokens, const Fed& fed);
  double flops_per_second() const;
  Profile wide_profile() const { return parse_profile(name_of(wide_format(kernels_.compute))); }

  std::shared_ptr<const Model> model_;
  CpuEngineOptions options_;
  const Kernels& kernels_;
  mutable ThreadPool pool_;
  PackedModel packed_;
  Forward forward_;
  std::vector<kv::LayerShape> shapes_;
  // CacheMode::transcode: the last group's prefix in 16 bits, for its other profiles.
  std::optional<Prefilled> wide_prefix_;
  Tokens wide_prefix_tokens_;
  mutable double flops_per_second_ = 0;
};

CpuEngine::Prefilled CpuEngine::prefill(const Profile& profile, const Tokens& tokens, const Fed& fed) {
  auto cache = make_cache(profile);
  kv::Sequence sequence = cache->create();
  Prefilled result{std::move(cache), std::move(sequence)};
  for (size_t first = 0; first < tokens.size(); first += size_t(options_.chunk_tokens)) {
    const size_t count = std::min(size_t(options_.chunk_tokens), tokens.size() - first);
    const Feed feed{&result.sequence, {tokens.data() + first, count}, count};
    forward_.run(*result.cache, {&feed, 1}, {});
    fed(count);
  }
  return result;
}

CpuEngine::Prefilled CpuEngine::transcoded(const Profile& profile, const Tokens& tokens, const Fed& fed) {
  if (wide_prefix_ && wide_prefix_tokens_ == tokens) {
    fed(tokens.size());
  } else {
    wide_prefix_.reset();  // two long prefixes need not be held at once
    wide_prefix_.emplace(prefill(wide_profile(), tokens, fed));
    wide_prefix_tokens_ = tokens;
  }
  auto cache = make_cache(profile);
  kv::Sequence sequence = cache->transcode(wide_prefix_->sequence);
  return {std::move(cache), std::move(sequence)};
}

void CpuEngine::run(const PromptGroup& group, const Decoding& decoding, const Profile& profile,
                    const Events& events) try {
  check(profile);
  const size_t context = size_t(model_->config.context);
  check_group(group, model_->config.vocabulary, context);
  if (decoding.max_tokens < 1) {
    throw Error(ErrorKind::usage,
                fmt::format("answers of at most {} tokens: allow at least 1", decoding.max_tokens));
  }

  uint64_t done = 0;
  const Fed fed = [&](size_t tokens) {
    done += tokens;
    if (events.progress && !events.progress(done)) throw Error(ErrorKind::cancelled, "interrupted");
  };
  const auto start = Clock::now();
  const bool transcode = profile.mode == CacheMode::transcode;
  Prefilled prefix =
      transcode ? transcoded(profile, group.prefix.tokens, fed) : prefill(profile, group.prefix.tokens, fed);

  const BranchLimits limits{context, options_.chunk_tokens, options_.max_branches, seconds_since(start)};
  const BranchResults branches = run_branches(group, decoding, model_->tokenizer.get(), kernels_, forward_,
                                              *prefix.cache, prefix.sequence, limits, events, fed);
  const auto of_prefix = prefix.sequence.diagnostics();
  std::vector<CacheDiagnostic> sum(of_prefix.begin(), of_prefix.end());
  for (const auto& branch : branches.diagnostics) add(sum, branch);
  model_->files.check_intact();  // token rows are read from the file, all along
  check_finite(sum, profile, model_->name);
  if (!branches.finite_logits) {  // from behind the last layer's keys and values
    throw Error(ErrorKind::run, model_->name + ": made logits that are not finite numbers",
                "check the checkpoint: its answers mean nothing under any cache format");
  }
  if (events.on_diagnostics) events.on_diagnostics(sum);
} catch (const std::bad_alloc&) {
  throw Error(ErrorKind::run,
              fmt::format("out of memory with {} tokens under profile '{}'", group.prefix.tokens.size(),
                          canonical(profile)),
              "use a shorter length, fewer branches or a smaller cache format");
}

// A checkpoint's own scales need no text. For the others the largest |key| and |value| of each layer over the
// calibration text become its scales: largest code = that value.
Profile CpuEngine::resolve(const Profile& profile, std::span<const Tokens> calibration) {
  check(profile);
  if (!profile.needs_resolve()) return profile;
  Profile resolved = profile;
  if (profile.k.scale == ScaleAxis::checkpoint) resolved.k.static_scales = model_->cache_scales.k;
  if (profile.v.scale == ScaleAxis::checkpoint) resolved.v.static_scales = model_->cache_scales.v;
  if (!resolved.needs_resolve()) return resolved;
  if (calibration.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("profile '{}' has a static scale and there is no text to measure it on",
                            canonical(profile)));
  }
  std::vector<float> k_max(shapes_.size(), 0.0f), v_max(shapes_.size(), 0.0f);
  for (const Tokens& tokens : calibration) {
    const Prefilled observed = prefill(parse_profile("f32"), tokens, [](size_t) {});
    for (const CacheDiagnostic& d : observed.sequence.diagnostics()) {
      float& most = (d.keys ? k_max : v_max)[size_t(d.layer)];
      most = std::max(most, d.absolute_max);
    }
  }
  const auto freeze = [](CachePart& part, const std::vector<float>& most) {
    if (part.scale != ScaleAxis::tensor) return;
    part.static_scales.clear();
    // A layer that was zero throughout keeps scale 1: dividing by zero would turn its first other value into
    // NaN.
    for (const float m : most) part.static_scales.push_back(m > 0 ? m / kv::largest(part.format) : 1.0f);
  };
  freeze(resolved.k, k_max);
  freeze(resolved.v, v_max);
  return resolved;
}

// Floating-point operations a second of one large product, measured once: what estimates are made of.
double CpuEngine::flops_per_second() const {
  if (flops_per_second_ > 0) return flops_per_second_;
  constexpr int kSide = 512;
  const PackedMatrix packed =
      pack(float_tensor(kSide, kSide, std::vector<float>(size_t(kSide) * kSide, 0.5f)), pool_);
  std::vector<float> a(size_t(kSide) * kSide, 0.25f), c(a.size());
  double best = 1e9;
  for (int i = 0; i < 5; i++) {
    const auto start = Clock::now();
    matmul(kernels_, pool_, packed, a.data(), kSide, kSide, c.data(), kSide);
    best = std::min(best, seconds_since(start));
  }
  return flops_per_second_ = 2.0 * kSide * kSide * kSide / best;
}

Estimate CpuEngine::estimate(const GroupShape& shape, const Profile& profile) const {
  const ModelConfig& config = model_->config;
  const size_t replied = std::min(shape.reply_tokens, shape.branch_tokens);
  const size_t fed = shape.branch_tokens - std::min(replied, size_t{1});  // a reply's last token is not
  const size_t wanted = std::min(replied, fed);  // logits behind the last fed one and those before it
  Estimate estimate;
  estimate.prefix_flops = forward_flops(config, 0, shape.prefix_tokens, 0);
  estimate.branch_flops = double(shape.branches) * forward_flops(config, shape.prefix_tokens, fed, wanted);
  const size_t end = shape.prefix_tokens + fed;
  if (end > 0) estimate.step_bytes = packed_.bytes() + cache_bytes_read(shapes_, profile, end - 1);
  // Measured on the phantom at 8K to 128K: norms, encoding and short products add about 60 % to the large
  // ones.
  constexpr double kOverhead = 1.6;
  estimate.prefix_seconds = estimate.prefix_flops / flops_per_second() * kOverhead;
  estimate.branch_seconds = estimate.branch_flops / flops_per_second() * kOverhead;
  const auto bytes_under = [&](const Profile& p, size_t tokens) {
    return kv::bytes_for(shapes_, p, options_.page_tokens, tokens, size_t(options_.chunk_tokens));
  };
  const auto bytes = [&](size_t tokens) { return bytes_under(profile, tokens); };
  const size_t together =
      options_.max_branches > 0 ? std::min(shape.branches, size_t(options_.max_branches)) : shape.branches;
  estimate.cache_bytes =
      bytes(shape.prefix_tokens) +
      together * bytes(std::min(shape.prefix_tokens, size_t(options_.page_tokens)) + shape.branch_tokens);
  if (profile.mode == CacheMode::transcode) {  // the 16-bit prefix stays for the group's other profiles
    estimate.cache_bytes += bytes_under(wide_profile(), shape.prefix_tokens);
  }
  return estimate;
}

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(std::shared_ptr<const Model> model, const CpuEngineOptions& options) {
  return std::make_unique<CpuEngine>(std::move(model), options);
}

}  // namespace kveval
