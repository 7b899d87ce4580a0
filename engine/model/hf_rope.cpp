// RoPE as config.json describes it.
#include <fmt/format.h>

#include "engine/model/file_error.h"
#include "engine/model/hf_config.h"
#include "engine/model/rope.h"

namespace kveval {
namespace {

// What one rotation is made of, whichever keys said so.
struct Plan {
  double theta;
  int head_dim;
  int context;  // max_position_embeddings
};

double need_above(JsonKeys& keys, std::string_view key, double least) {
  const double value = keys.need_number(key);
  if (!(value > least)) throw keys.error(key, fmt::format("is {}, not above {}", value, least));
  return value;
}

double need_factor(JsonKeys& keys) {
  const double factor = keys.need_number("factor");
  if (!(factor >= 1)) throw keys.error("factor", fmt::format("is {}, below 1", factor));
  return factor;
}

double theta_in(JsonKeys& keys, std::string_view key, double when_absent) {
  const double theta = keys.number(key).value_or(when_absent);
  if (!(theta > 1)) throw keys.error(key, fmt::format("is {}, not above 1", theta));
  return theta;
}

Rope llama3(JsonKeys& keys, const Plan& plan) {
  const double factor = need_factor(keys);
  const double low = need_above(keys, "low_freq_factor", 0), high = need_above(keys, "high_freq_factor", low);
  const double original = need_above(keys, "original_max_position_embeddings", 0);
  return llama3_rope(plan.theta, plan.head_dim, factor, low, high, original);
}

// A length that is absent is the model's own. `context` becomes what the stretched model reaches.
Rope yarn(JsonKeys& keys, const Plan& plan, int& context) {
  Yarn yarn;
  yarn.factor = need_factor(keys);
  yarn.original_context = keys.has("original_max_position_embeddings")
                              ? need_above(keys, "original_max_position_embeddings", 0)
                              : plan.context;
  if (keys.has("beta_fast")) yarn.beta_fast = need_above(keys, "beta_fast", 0);
  if (keys.has("beta_slow")) yarn.beta_slow = need_above(keys, "beta_slow", 0);
  if (!(yarn.beta_fast > yarn.beta_slow)) throw keys.error("beta_fast", "is not above beta_slow");
  if (keys.has("attention_factor")) yarn.attention_factor = need_above(keys, "attention_factor", 0);
  keys.require("truncate", true);
  context = yarn_context(yarn, plan.context);
  return yarn_rope(plan.theta, plan.head_dim, yarn);
}

Rope read_rope(JsonKeys& keys, const Plan& plan, int& context) {
  const std::optional<std::string> new_name = keys.text("rope_type"), old_name = keys.text("type");
  if (new_name && old_name && *new_name != *old_name)
    throw keys.error("type", fmt::format("is {}, rope_type {}", quote(*old_name), quote(*new_name)));
  const std::string type = new_name ? *new_name : old_name.value_or("default");
  keys.require("partial_rotary_factor", 1);
  Rope rope;
  if (type == "default")
    rope = plain_rope(plan.theta, plan.head_dim);
  else if (type == "linear")
    rope = linear_rope(plan.theta, plan.head_dim, need_factor(keys));
  else if (type == "llama3")
    rope = llama3(keys, plan);
  else if (type == "yarn")
    rope = yarn(keys, plan, context);
  else
    throw keys.error(new_name ? "rope_type" : "type",
                     fmt::format("is {}; kveval knows default, linear, llama3 and yarn", quote(type)));
  keys.refuse_unread();
  return rope;
}

}  // namespace

HfRopes read_hf_ropes(JsonKeys& config, const HfRopeDefaults& defaults, int head_dim, int context) {
  std::optional<JsonKeys> scaling = config.object("rope_scaling");
  std::optional<JsonKeys> parameters = config.object("rope_parameters");
  if (scaling && parameters) throw config.error("rope_parameters", "is there beside rope_scaling");
  config.require("partial_rotary_factor", 1);
  const bool has_theta = config.has("rope_theta"), has_local = config.has("rope_local_base_freq");
  const double full_theta = theta_in(config, "rope_theta", defaults.full_theta);
  const double sliding_theta = defaults.by_layer
                                   ? theta_in(config, "rope_local_base_freq", defaults.sliding_theta)
                                   : defaults.sliding_theta;

  HfRopes ropes{{}, {}, context};
  // `keys` may say theta too, and then the same.
  const auto rope_of = [&](std::optional<JsonKeys>& keys, double theta, bool is_stated) {
    static const nlohmann::json kNothing = nlohmann::json::object();
    if (!keys) keys.emplace(config.path(), kNothing);
    const double own = theta_in(*keys, "rope_theta", theta);
    if (is_stated && own != theta)
      throw keys->error("rope_theta", fmt::format("is {}, but {} outside", own, theta));
    return read_rope(*keys, {own, head_dim, context}, ropes.context);
  };

  std::optional<JsonKeys>& both = parameters ? parameters : scaling;
  std::optional<JsonKeys> full, sliding;
  if (defaults.by_layer && both && (both->has("full_attention") || both->has("sliding_attention"))) {
    full = both->object("full_attention");
    sliding = both->object("sliding_attention");
    both->refuse_unread();
  } else if (defaults.by_layer && parameters) {
    throw config.error("rope_parameters", "has neither full_attention nor sliding_attention");
  } else {
    full = both;  // in Gemma 3, rope_scaling is for layers with full attention
  }
  ropes.full = rope_of(full, full_theta, has_theta);
  if (defaults.by_layer) ropes.sliding = rope_of(sliding, sliding_theta, has_local);
  return ropes;
}

}  // namespace kveval
