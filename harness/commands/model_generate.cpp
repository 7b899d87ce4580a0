// kveval model generate: one answer, decoded greedily.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/compute.h"
#include "engine/error.h"
#include "engine/text/utf8.h"
#include "harness/commands/model.h"
#include "harness/commands/session.h"
#include "harness/planner.h"
#include "reports/text.h"
#include "tasks/framing.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

constexpr int kDefaultTokens = 256;

struct GenerateOptions {
  std::string model, prompt;
  std::optional<std::string> profile;  // else the 16-bit format of the arithmetic
  std::string chat = "auto";
  std::optional<std::string> system;
  std::optional<int> max_tokens;
  EngineSettings engine;
  bool json = false;
};

// The answer on standard output as it grows, without what would act on a terminal. Characters come when they
// are whole.
class AnswerPrinter {
 public:
  void update(const std::string& text) {
    std::string_view fresh = std::string_view(text).substr(std::min(printed_, text.size()));
    // A token may end inside a character, of at most four bytes; what stays invalid is printed as such.
    size_t whole = valid_utf8_prefix(fresh);
    if (fresh.size() - whole >= 4) whole = fresh.size();
    print(fresh.substr(0, whole));
    printed_ += whole;
  }
  void finish(const std::string& text) {
    print(std::string_view(text).substr(std::min(printed_, text.size())));
    fmt::print("\n");
    std::fflush(stdout);  // what is told on the other stream comes behind it
  }

 private:
  static void print(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find_first_of("\n\t"), text.size());
      fmt::print("{}", printable(text.substr(0, end), SIZE_MAX));
      if (end < text.size()) fmt::print("{}", text[end]);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    std::fflush(stdout);
  }
  size_t printed_ = 0;  // bytes
};

const char* ending(Stop stop) { return stop == Stop::length ? "the token limit" : "the model"; }

void print_speed(size_t prompt, const Reply& reply, std::FILE* stream) {
  // The prompt's last token is fed with the answer, and the answer's last is not fed at all.
  const double fed = double(std::max<size_t>(1, reply.stats.size()));
  const auto rate = [](double tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0.0; };
  fmt::print(
      stream,
      "\nprompt {} in {:.2f} s ({:.0f} tokens/s), answer {} in {:.2f} s ({:.1f} tokens/s), ended by {}\n",
      counted(prompt, "token"), reply.timing.prefix_seconds,
      rate(double(prompt - 1), reply.timing.prefix_seconds), counted(reply.tokens.size(), "token"),
      reply.timing.reply_seconds, rate(fed, reply.timing.reply_seconds), ending(reply.stop));
}

Tokens tokens_of(const GenerateOptions& options, const Framing& framing) {
  Tokens tokens =
      framing.tokenizer.encode_prompt(render(framing.chat, options.system, {{options.prompt, {}}}));
  if (const auto bos = framing.tokenizer.bos()) tokens.insert(tokens.begin(), *bos);
  if (tokens.empty())
    throw Error(ErrorKind::usage, "the prompt is empty", "give the model something to go on from");
  return tokens;
}

int room_for(const GenerateOptions& options, size_t prompt, const EngineInfo& info) {
  const size_t context = size_t(info.context);
  const size_t wanted = size_t(options.max_tokens.value_or(1));
  if (prompt + wanted > context)
    throw Error(ErrorKind::usage,
                fmt::format("{} of prompt and {} of answer do not fit {}, whose context is {} tokens",
                            counted(prompt, "token"), wanted, info.model, context),
                "shorten the prompt or give a smaller --max-tokens");
  return options.max_tokens.value_or(int(std::min(context - prompt, size_t(kDefaultTokens))));
}

void generate_command(const GenerateOptions& options, const Context& context) {
  check_utf8(options.prompt, "the prompt");
  if (options.system) check_utf8(*options.system, "the system text");
  std::vector<Profile> profiles = {
      parse_profile(options.profile.value_or(name_of(wide_format(options.engine.compute))))};
  const std::unique_ptr<Engine> engine = open_engine(options.model, options.engine, context);
  const EngineInfo info = engine->describe();
  engine->check(profiles[0]);
  if (info.tokenizer == nullptr)
    throw Error(ErrorKind::usage, fmt::format("{} has no tokenizer to read a prompt with", info.model));
  const Framing framing{*info.tokenizer, chat_of(info, options.chat)};
  const Tokens prompt = tokens_of(options, framing);
  Decoding decoding;
  decoding.max_tokens = room_for(options, prompt.size(), info);
  decoding.stop_tokens = stop_tokens(framing);
  resolve_profiles(profiles, *engine);

  PromptGroup group;
  group.prefix.tokens.assign(prompt.begin(), prompt.end() - 1);
  group.branches = {{{{.tokens = {prompt.back()}, .text = {}, .ask = Ask::generate, .target = {}}}}};
  AnswerPrinter printer;
  Reply answer;
  Events events;
  events.on_token = [&](size_t, size_t, const Reply& so_far) {
    if (!options.json) printer.update(so_far.text);
  };
  events.on_reply = [&](size_t, size_t, Reply&& reply) { answer = std::move(reply); };
  engine->run(group, decoding, profiles[0], events);
  if (answer.error) throw Error(*answer.error);
  if (options.json) {
    print_json({{"schema", "kveval.model-generate/1"},
                {"model", info.model},
                {"model_hash", info.model_hash},
                {"compute", info.compute},
                {"profile", canonical(profiles[0])},
                {"chat_family", framing.chat.family},
                {"template_hash", template_hash(framing.chat)},
                {"prompt_tokens", prompt},
                {"tokens", answer.tokens},
                {"text", answer.text},
                {"stop", answer.stop == Stop::length ? "length" : "eos"},
                {"prompt_seconds", answer.timing.prefix_seconds},
                {"answer_seconds", answer.timing.reply_seconds}});
    return;
  }
  printer.finish(answer.text);
  if (!context.quiet) print_speed(prompt.size(), answer, stderr);
}

}  // namespace

void add_model_generate(CLI::App& model, Context& context) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command =
      model.add_subcommand("generate", "One answer to a prompt, the likeliest token each time");
  add_model_argument(*command, options->model);
  command->add_option("prompt", options->prompt, "what to ask")->required();
  add_profile_option(*command, options->profile);
  command
      ->add_option("--max-tokens", options->max_tokens, "end the answer after so many tokens (default: 256)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--system", options->system, "a system text, in place of the template's own");
  add_chat_option(*command, options->chat);
  add_compute_option(*command, options->engine);
  add_engine_options(*command, options->engine);
  command->add_flag("--json", options->json, "print the answer, its tokens and times as JSON");
  command->callback([options, &context] { generate_command(*options, context); });
}

}  // namespace kveval
