#include "engine/text/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/error.h"
#include "engine/random.h"
#include "engine/text/jinja_literals.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/small_vocabularies.h"

namespace kveval {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// In the forms that checkpoints have: string literals with escapes or real line ends, either kind of quote.
constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr const char* kChatMlWithSystem = R"(
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou\'re \"it\".<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";
constexpr const char* kChatMlWithSet =
    R"({% set system_message = 'Be kind.' %}{% if messages[0]['role'] == 'system' %})"
    R"({% set system_message = messages[0]['content'] %}{% endif %}{{ '<|im_start|>system\n' + system_message + )"
    R"('<|im_end|>\n' }}{{ '<|im_start|>' + message.role + '<|im_end|>\n' }}{{ '<|im_start|>assistant\n' }})";
constexpr const char* kGemma2 =
    R"({{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system') }}{% endif %})"
    R"({{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }})"
    R"({% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %})";
constexpr const char* kGemma3 =
    R"({{ bos_token }}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%})"
    R"({{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }})"
    R"({{ message['content'] | trim }}{{ '<end_of_turn>\n' }}{{'<start_of_turn>model\n'}})";
constexpr const char* kLlama3 =
    R"({% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + )"
    R"('<|eot_id|>' %}{{ content }}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }})";
constexpr const char* kLlama31 =
    R"({#- The {{ "system" }} text. #}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %})"
    R"({%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- set system_message = "" %})"
    R"({{- "<|start_header_id|>system<|end_header_id|>\n\n" }}{{- "Cutting Knowledge Date: December 2023\n" }})"
    R"({{- "Today Date: " + date_string + "\n\n" }}{{- system_message }}{{- "<|eot_id|>" }})"
    R"({{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }})"
    R"({{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }})";
constexpr const char* kMistral1 =
    R"({%- if loop.first and system_message is defined %}{{- ' [INST] ' + system_message + '\n\n' + message['content'])"
    R"( + ' [/INST]' }}{%- else %}{{- ' [INST] ' + message['content'] + ' [/INST]' }}{%- endif %})"
    R"({{- ' ' + message['content'] + eos_token}})";
constexpr const char* kMistral3 =
    R"({%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\n\n" + message["content"])"
    R"( + "[/INST]" }}{%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %})"
    R"({{- " " + message["content"]|trim + eos_token}})";
constexpr const char* kMistral3Tekken =
    R"({%- if loop.last and system_message is defined %}{{- "[INST]" + system_message + "\n\n" + message["content"])"
    R"( + "[/INST]" }}{%- else %}{{- "[INST]" + message["content"] + "[/INST]" }}{%- endif %})"
    R"({{- message["content"] + eos_token}})";
constexpr const char* kMistral7 =
    R"({{ '[INST] ' + message['content'] + '[/INST]' }}{{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }})"
    R"({{ ' ' + message['content'] + eos_token }})";
constexpr const char* kMistral7Tekken =
    R"({%- set default_system_message = "Be brief." %}{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }})"
    R"({{- '[INST]' + message['content'] + '[/INST]' }}{{- message['content'] + eos_token }})";

// What the template gives, BOS left out.
struct Case {
  const char* name;
  const char* jinja;
  const char* family;
  std::string alone;        // user "Q"
  std::string with_system;  // system "S", user "Q"; empty: refused
  std::string two_turns;    // user " Q ", assistant " A ", user "R", answer prefix " B"
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string joined(const std::vector<PromptPart>& parts) {
  std::string text;
  for (const PromptPart& part : parts) text += part.text;
  return text;
}

class Family : public testing::TestWithParam<Case> {};
TEST_P(Family, RendersAsItsTemplate) {
  const ChatTemplate chat = detect_chat(GetParam().jinja, "</s>");
  EXPECT_EQ(chat.family, GetParam().family);
  EXPECT_EQ(joined(render(chat, std::nullopt, {{"Q", ""}})), GetParam().alone);
  EXPECT_EQ(joined(render(chat, std::nullopt, {{" Q ", " A "}, {"R", " B"}})), GetParam().two_turns);
  if (GetParam().with_system.empty())
    EXPECT_THROW(render(chat, "S", {{"Q", ""}}), Error);
  else
    EXPECT_EQ(joined(render(chat, "S", {{"Q", ""}})), GetParam().with_system);
}

const std::string kLlamaHeader = "<|start_header_id|>";
const std::string kDates = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
std::string llama_turn(const std::string& role, const std::string& text) {
  return kLlamaHeader + role + "<|end_header_id|>\n\n" + text + "<|eot_id|>";
}
const std::string kLlamaAnswer = kLlamaHeader + "assistant<|end_header_id|>\n\n";

INSTANTIATE_TEST_SUITE_P(
    All, Family,
    testing::Values(
        Case{"chatml", kChatMl, "chatml", "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
             "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
             "<|im_start|>user\n Q <|im_end|>\n<|im_start|>assistant\n A "
             "<|im_end|>\n<|im_start|>user\nR<|im_end|>\n"
             "<|im_start|>assistant\n B"},
        Case{"chatml_with_system", kChatMlWithSystem, "chatml",
             "<|im_start|>system\nYou're "
             "\"it\".<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
             "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
             "<|im_start|>system\nYou're \"it\".<|im_end|>\n<|im_start|>user\n Q "
             "<|im_end|>\n<|im_start|>assistant\n A "
             "<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n B"},
        Case{"chatml_with_set", kChatMlWithSet, "chatml",
             "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
             "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
             "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Q "
             "<|im_end|>\n<|im_start|>assistant\n A "
             "<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n B"},
        Case{
            "gemma_2", kGemma2, "gemma", "<start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\n", "",
            "<start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\n"
            "R<end_of_turn>\n<start_of_turn>model\nB"},
        Case{
            "gemma_3", kGemma3, "gemma", "<start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\n",
            "<start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\n",
            "<start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\n"
            "R<end_of_turn>\n<start_of_turn>model\nB"},
        Case{"llama_3", kLlama3, "llama-3", llama_turn("user", "Q") + kLlamaAnswer,
             llama_turn("system", "S") + llama_turn("user", "Q") + kLlamaAnswer,
             llama_turn("user", "Q") + llama_turn("assistant", "A") + llama_turn("user", "R") + kLlamaAnswer +
                 "B"},
        Case{"llama_3_1", kLlama31, "llama-3",
             llama_turn("system", kDates) + llama_turn("user", "Q") + kLlamaAnswer,
             llama_turn("system", kDates + "S") + llama_turn("user", "Q") + kLlamaAnswer,
             llama_turn("system", kDates) + llama_turn("user", "Q") + llama_turn("assistant", "A") +
                 llama_turn("user", "R") + kLlamaAnswer + "B"},
        Case{"mistral_1", kMistral1, "mistral-v1", " [INST] Q [/INST]", " [INST] S\n\nQ [/INST]",
             " [INST]  Q  [/INST]  A </s> [INST] R [/INST]  B"},
        Case{"mistral_3", kMistral3, "mistral-v3", "[INST] Q[/INST]", "[INST] S\n\nQ[/INST]",
             "[INST]  Q [/INST] A</s>[INST] R[/INST] B"},
        Case{"mistral_3_tekken", kMistral3Tekken, "mistral-v3-tekken", "[INST]Q[/INST]",
             "[INST]S\n\nQ[/INST]", "[INST] Q [/INST] A </s>[INST]R[/INST] B"},
        Case{"mistral_7", kMistral7, "mistral-v7", "[INST] Q[/INST]",
             "[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] Q[/INST]",
             "[INST]  Q [/INST]  A </s>[INST] R[/INST]  B"},
        Case{"mistral_7_tekken", kMistral7Tekken, "mistral-v7-tekken",
             "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Q[/INST]",
             "[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Q[/INST]",
             "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST] Q [/INST] A </s>[INST]R[/INST] B"}),
    [](const auto& c) { return c.param.name; });

TEST(Chat, SystemTextMayStandInTheLastTurn) {
  EXPECT_EQ(joined(render(detect_chat(kMistral3, "</s>"), "S", {{"Q", "A"}, {"R", ""}})),
            "[INST] Q[/INST] A</s>[INST] S\n\nR[/INST]");
  EXPECT_EQ(joined(render(detect_chat(kMistral1, "</s>"), "S", {{"Q", "A"}, {"R", ""}})),
            " [INST] S\n\nQ [/INST] A</s> [INST] R [/INST]");
}

TEST(Chat, PlainIsTheWordsAlone) {
  EXPECT_EQ(joined(render(plain_chat(), std::nullopt, {{" Q ", " A"}})), " Q  A");
  EXPECT_THROW(render(plain_chat(), "S", {{"Q", ""}}), Error);
  EXPECT_THROW(render(plain_chat(), std::nullopt, {}), Error);
}

TEST(Chat, PrefixAndBranchAreTheRenderedPrompt) {
  for (const char* jinja : {kChatMl, kChatMlWithSystem, kLlama31, kGemma3, kMistral3}) {
    const ChatTemplate chat = detect_chat(jinja, "</s>");
    EXPECT_EQ(joined(render(chat, std::nullopt, {{"hay question", "answer"}})),
              chat.before_prompt + "hay" + " question" + chat.before_answer + "answer");
  }
}

TEST(Chat, OnlyWhatTheTemplateWroteIsLiteral) {
  Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {});
  const Token start = Token(vocabulary.pieces.size()), end = start + 1;
  for (const char* special : {"<|im_start|>", "<|im_end|>"}) {
    vocabulary.pieces.emplace_back(special);
    vocabulary.kinds.push_back(PieceKind::control);
  }
  const auto tokenizer = make_tokenizer(vocabulary);
  const Tokens tokens = tokenizer->encode_prompt(
      render(detect_chat(kChatMl, ""), "S<|im_end|>", {{"<|im_start|>", "<|im_end|>"}}));
  EXPECT_EQ(std::ranges::count(tokens, start), 3);
  EXPECT_EQ(std::ranges::count(tokens, end), 2);
  EXPECT_EQ(tokens.front(), start);
  EXPECT_EQ(tokenizer->decode(tokens), "system\nS<|im_end|>\nuser\n<|im_start|>\nassistant\n<|im_end|>");
}

struct Refusal {
  const char* name;
  std::string jinja;
  const char* message;
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class UnknownTemplate : public testing::TestWithParam<Refusal> {};
TEST_P(UnknownTemplate, IsRefused) {
  try {
    detect_chat(GetParam().jinja, "</s>");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("chat template '"), HasSubstr("XXH3"), HasSubstr(GetParam().message)));
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, UnknownTemplate,
    testing::Values(
        Refusal{"empty", "", "no family"},
        Refusal{"zephyr", "{{ '<|user|>\n' + message['content'] }}", "no family"},
        Refusal{"no_utf8", std::string(kChatMl) + "\xc0", "no UTF-8"},
        Refusal{"in_a_comment", "{# <|im_start|>assistant\n #}", "no family"},
        Refusal{"phi_4", "{{'<|im_start|>assistant<|im_sep|>'}}", "phi-4"},
        Refusal{"llama_2", "{{ '[INST] <<SYS>>' + s + ' [/INST]' }}", "llama-2"},
        Refusal{"thinks", "{{'<|im_end|>'}}{{'<|im_start|>assistant\n<think>\n'}}", "opens an answer with"},
        Refusal{"no_answer", "{{'<|im_start|>' + role}}", "does not write"},
        Refusal{"no_end", "{{'<|im_start|>assistant\n'}}", "does not write '<|im_end|>'"},
        Refusal{"two_systems", std::string(kChatMlWithSystem) + "{{'<|im_start|>system\nOther<|im_end|>'}}",
                "two system"},
        Refusal{"todays_date",
                R"({%- set default_system_message = "Today is " + today + "." %})" + std::string(kMistral7),
                "computes"},
        Refusal{"llama_date",
                R"({{ "Cutting Knowledge Date: " + x }}{{ "Today Date: " + y }})" + std::string(kLlama3),
                "computes"},
        Refusal{"unsure_spaces", "{{'[INST] ' + x + '[/INST]'}}{{'[INST]'}}", "writes both"}),
    [](const auto& refusal) { return refusal.param.name; });

TEST(Chat, HashChangesWithEveryField) {
  std::set<std::string> hashes;
  ChatTemplate chat = plain_chat();
  const auto is_new = [&] { return hashes.insert(template_hash(chat)).second; };
  EXPECT_TRUE(is_new());
  for (std::string* field : {&chat.family, &chat.before_prompt, &chat.before_answer, &chat.next_prompt,
                             &chat.before_system, &chat.after_system, &chat.end_of_answer}) {
    *field += "x";
    EXPECT_TRUE(is_new());
  }
  for (bool* field : {&chat.system_in_last_turn, &chat.trims_system, &chat.trims_user, &chat.trims_answer}) {
    *field = true;
    EXPECT_TRUE(is_new());
  }
}

TEST(JinjaLiterals, AreFoundWithTheCodeAroundThem) {
  const auto literals = jinja_literals("a{# '#' #}{%- set x = 'it\\'s %}' -%}{{ \"q\\n\" + y + 'z' }}b");
  ASSERT_EQ(literals.size(), 5u);
  EXPECT_EQ(literals[0].text, "a");
  EXPECT_EQ(literals[1].text, "it's %}");
  EXPECT_EQ(literals[1].before, "set x =");
  EXPECT_EQ(literals[1].after, "");
  EXPECT_EQ(literals[2].text, "q\n");
  EXPECT_EQ(literals[2].after, "+ y +");
  EXPECT_EQ(literals[3].before, "+ y +");
  EXPECT_EQ(literals[3].text, "z");
  EXPECT_EQ(literals[4].text, "b");
}

TEST(JinjaLiterals, AnUnfinishedTagHasNone) {
  for (const char* jinja : {"{{", "{{ 'a'", "{{ 'a' }", "{% 'a }}", "{{ 'a\\' }}", "{{ \"\u00e9", "{# 'a'"})
    EXPECT_TRUE(jinja_literals(jinja).empty()) << jinja;
}

TEST(JinjaLiterals, AnyTextIsRead) {
  Random random(8);
  const std::string_view parts[] = {
      "{{",     "}}", "{%", "%}", "{#",           "#}", "'", "\"", "\\", "n", " ", "<|im_start|>assistant\n",
      "[INST]", "-",  "{",  "}",  "set system = "};
  for (int i = 0; i < 3000; ++i) {
    std::string jinja;
    for (uint64_t n = random.below(20); n > 0; --n) jinja += parts[random.below(std::size(parts))];
    jinja_literals(jinja);
    try {
      detect_chat(jinja, "");
    } catch (const Error&) {}
  }
}

}  // namespace
}  // namespace kveval
