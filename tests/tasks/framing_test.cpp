// Prompts in a chat template: the whole prompt's tokens, cut into a prefix and its questions.
#include "tasks/framing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tasks/task.h"
#include "tests/tasks/test_tokenizers.h"

namespace kveval {
namespace {

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

ChatTemplate chatml() {
  return {.family = "chatml",
          .before_prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n",
          .before_answer = "<|im_end|>\n<|im_start|>assistant\n",
          .trims_user = true,
          .end_of_answer = "<|im_end|>"};
}

using Id = ChatTokenizer;

// ChatTokenizer's tokens, written down from the picture in tasks/framing.h.
Tokens spelled(std::string_view text) {
  Tokens tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(".\n\n")) {
      tokens.push_back(Id::kParagraph);
      i += 2;
    } else {
      tokens.push_back(static_cast<unsigned char>(text[i]));
    }
  }
  return tokens;
}

Tokens framed(const std::string& text, const std::string& question, const std::string& answer) {
  return Tokens{Id::kBos, Id::kStart} + spelled("system\nBe brief.") + Tokens{Id::kEnd} + spelled("\n") +
         Tokens{Id::kStart} + spelled("user\n" + text + question) + Tokens{Id::kEnd} + spelled("\n") +
         Tokens{Id::kStart} + spelled("assistant\n" + answer);
}

TEST(Framing, PutsTheTemplateAroundTheWords) {
  const ChatTokenizer tokenizer;
  const Framing framing{tokenizer, chatml()};
  EXPECT_EQ(prompt_tokens(framing, "Hay.", {"\n\nWhat?", "It is:"}), framed("Hay.", "\n\nWhat?", "It is:"));
  EXPECT_EQ(prefix_text(framing, "Hay.") + branch_text(framing, {"\n\nWhat?", "It is:"}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHay.\n\nWhat?<|im_end|>\n"
            "<|im_start|>assistant\nIt is:");
}

TEST(Framing, PlainIsTheTextWithALineForTheAnswer) {
  const ChatTokenizer tokenizer;
  const Framing framing{tokenizer};
  EXPECT_EQ(prompt_tokens(framing, "Hay.", {"\n\nWhat?", "It is:"}),
            Tokens{Id::kBos} + spelled("Hay.\n\nWhat?\nIt is:"));
  EXPECT_EQ(prefix_text(framing, "Hay.") + branch_text(framing, {"\n\nWhat?", "It is:"}),
            "Hay.\n\nWhat?\nIt is:");
}

TEST(Framing, SpecialTokensInTheTextStayText) {
  const ChatTokenizer tokenizer;
  for (const ChatTemplate& chat : {chatml(), plain_chat()}) {
    const Tokens tokens = prompt_tokens({tokenizer, chat}, "a<|im_end|>b", {"<|im_start|>", "<|im_end|>"});
    const auto specials = [&](Token id) { return std::count(tokens.begin(), tokens.end(), id); };
    EXPECT_EQ(specials(Id::kBos), 1);
    EXPECT_EQ(specials(Id::kStart), chat.family == "plain" ? 0 : 3);
    EXPECT_EQ(specials(Id::kEnd), chat.family == "plain" ? 0 : 2);
  }
}

// Behind a long text too, where only its end is tokenized with the questions.
TEST(Framing, BranchesAreThoseOfTheWholePrompts) {
  const ChatTokenizer merging;
  const UnevenTokenizer uneven(3, 2);
  std::string text = "Hay.";
  for (const size_t size : {size_t{4}, size_t{500}, size_t{5000}}) {
    while (text.size() < size) text += fmt::format(" Straw {}.", text.size());
    for (const Framing& framing : {Framing{merging, chatml()}, Framing{merging}, Framing{uneven}}) {
      const std::vector<Asked> asked = {{"\n\nWhat?", "It is:"}, {"\n\nWhy?", "As:"}, {"\nOr?", "Or"}};
      Tokens prefix = prefix_tokens(framing, text);
      const Tokens uncut = prefix;
      const std::vector<Tokens> branches = cut_branches(framing, text, asked, prefix);
      ASSERT_EQ(branches.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(prefix + branches[i], prompt_tokens(framing, text, asked[i]));
      }
      EXPECT_EQ(uncut.size() - prefix.size(), &framing.tokenizer == &merging ? 1u : 0u);
    }
  }
}

TEST(Framing, RefusesATokenizerThatSharesNothing) {
  // Every token tells the length of its text.
  class LengthTokenizer : public ByteTokenizer {
   public:
    Tokens encode(std::string_view text) const override { return Tokens(text.size(), Token(text.size())); }
  };
  const LengthTokenizer lengths;
  for (const size_t size : {20, 5000}) {
    const std::string text(size, 'x');
    Tokens prefix = prefix_tokens({lengths}, text);
    const std::vector<Asked> asked = {{"?", "!"}};
    EXPECT_THROW(cut_branches({lengths}, text, asked, prefix), Error);
  }
}

TEST(Framing, AnAnswerEndsWithTheTemplatesToken) {
  const ChatTokenizer tokenizer;
  EXPECT_EQ(stop_tokens({tokenizer}), Tokens());
  EXPECT_EQ(stop_tokens({tokenizer, chatml()}), Tokens{Id::kEnd});
  ChatTemplate other = chatml();
  other.end_of_answer = "<end_of_turn>";
  try {
    stop_tokens({tokenizer, other});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_NE(std::string(error.what()).find("<end_of_turn>"), std::string::npos);
  }
}

// The tokenizer's ".\n\n" reaches from the haystack into the question.
TEST(Framing, NiahAsksInTheTemplate) {
  const ChatTokenizer tokenizer;
  const Task& niah = task_named("niah");
  const GroupSpec spec{.task = "niah",
                       .parameters = niah.resolve_parameters({{"needles", 3}}),
                       .length = 4096,
                       .haystack = 0,
                       .seed = 7};
  const SampleGroup plain = niah.make_group(spec, {tokenizer});
  const SampleGroup chat = niah.make_group(spec, {tokenizer, chatml()});
  const std::string before = chatml().before_prompt;
  ASSERT_TRUE(chat.prefix_text.starts_with(before + "Secret access codes"));
  const std::string hay = chat.prefix_text.substr(before.size());
  EXPECT_TRUE(hay.ends_with("."));
  EXPECT_EQ(chat.stop_tokens, Tokens{Id::kEnd});
  EXPECT_EQ(plain.stop_tokens, Tokens());

  size_t longest = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Sample& sample = chat.samples[i];
    const size_t end = sample.question.find("<|im_end|>\n<|im_start|>assistant\n");
    ASSERT_NE(end, std::string::npos);
    const std::string answer = sample.question.substr(sample.question.find("The secret"));
    EXPECT_EQ(chat.prefix + sample.question_tokens, framed(hay, sample.question.substr(0, end), answer));
    EXPECT_EQ(sample.target, spelled(" " + sample.expected));
    EXPECT_EQ(sample.question_tokens.front(), Id::kParagraph);
    longest = std::max(longest, sample.question_tokens.size());

    const Sample& same = plain.samples[i];
    EXPECT_EQ(same.item_key, sample.item_key);
    EXPECT_NE(same.prompt_sha, sample.prompt_sha);
    EXPECT_EQ(plain.prefix + same.question_tokens,
              Tokens{Id::kBos} + spelled(plain.prefix_text + same.question));
  }
  // Template and answer room count: full to within a sentence.
  const size_t used = chat.prefix.size() + longest + size_t(niah.max_answer_tokens);
  EXPECT_LE(used, 4096u);
  EXPECT_GT(used, 4096u - 150u);
}

}  // namespace
}  // namespace kveval
