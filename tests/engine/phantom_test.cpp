#include "engine/model/phantom.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "engine/model/catalog.h"
#include "engine/random.h"
#include "tests/engine/reference_forward.h"

namespace kveval {
namespace {

using reference::CacheRounding;
using reference::Vector;
using testing::AllOf;
using testing::Gt;
using testing::HasSubstr;
using testing::Lt;

constexpr Token kBos = 1;
constexpr int kVocabulary = 1024;
constexpr int kValueTokens = 3;

// Text is of no interest here: prompts are written as ids.
class IdTokenizer : public Tokenizer {
 public:
  explicit IdTokenizer(std::optional<Token> bos = kBos) : bos_(bos) {}
  Tokens encode(std::string_view) const override { return {}; }
  std::string decode(const Tokens&) const override { return {}; }
  int vocabulary_size() const override { return kVocabulary; }
  std::optional<Token> bos() const override { return bos_; }
  std::optional<Token> eos() const override { return 2; }
  std::string hash() const override { return "ids"; }

 private:
  std::optional<Token> bos_;
};

Model phantom(std::string_view specification, PhantomLayout layout = PhantomLayout::compact) {
  return build_phantom(parse_phantom(specification), std::make_shared<IdTokenizer>(), layout);
}

// BOS, random filler with needles "frame, two key words, is, value, stop", then one question after another,
// answers included (teacher forcing).
struct Prompt {
  Tokens tokens;
  std::vector<size_t> positions;  // kValueTokens a needle: what comes next is in `expected`
  Tokens expected;
};

Prompt make_prompt(size_t haystack, int needles, uint64_t seed) {
  Random random(seed);
  const Tokens frame = {11, 12, 13, 14, 15};
  Prompt prompt;
  prompt.tokens.push_back(kBos);
  while (prompt.tokens.size() < haystack)
    prompt.tokens.push_back(Token(200 + random.below(kVocabulary - 200)));
  std::vector<Tokens> statements;
  for (int n = 0; n < needles; ++n) {
    Tokens statement = frame;
    statement.insert(statement.end(),
                     {Token(20 + n), Token(60 + (n * 7) % 40), 16, 17});  // no key word repeats
    for (int i = 0; i < kValueTokens; ++i) statement.push_back(Token(100 + random.below(100)));
    const size_t begin = 1 + size_t(n) * (haystack - 1) / size_t(needles);
    std::copy(statement.begin(), statement.end(), prompt.tokens.begin() + std::ptrdiff_t(begin));
    statements.push_back(statement);
  }
  for (const Tokens& statement : statements) {
    for (int i = kValueTokens; i > 0; --i) {
      prompt.positions.push_back(prompt.tokens.size() + statement.size() - size_t(i) - 1);
      prompt.expected.push_back(statement[statement.size() - size_t(i)]);
    }
    prompt.tokens.insert(prompt.tokens.end(), statement.begin(), statement.end());
  }
  return prompt;
}

Token top(const Vector& logits) {
  return Token(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Needles whose whole value comes back.
int copied(const Prompt& prompt, const std::vector<Vector>& logits) {
  int right = 0;
  for (size_t i = 0; i < logits.size(); i += kValueTokens) {
    bool all = true;
    for (size_t j = i; j < i + kValueTokens; ++j) all &= top(logits[j]) == prompt.expected[j];
    right += all;
  }
  return right;
}

int copied(const Model& model, const Prompt& prompt, const CacheRounding& rounding = {}) {
  return copied(prompt, reference::logits(model, prompt.tokens, prompt.positions, rounding));
}

double largest_difference(const std::vector<Vector>& a, const std::vector<Vector>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j) largest = std::max(largest, std::abs(a[i][j] - b[i][j]));
  return largest;
}

// ------------------------------------------------------------------------------- what cache formats do, by
// arithmetic

CacheRounding each(const std::function<double(double)>& round) {
  return [round](int, bool, Vector& rows) {
    for (double& x : rows) x = round(x);
  };
}

// Nearest float with `mantissa` bits behind the point, exponents from `lowest`, saturating at `largest`; ties
// to even.
CacheRounding small_float(int mantissa, int lowest, double largest) {
  return each([=](double x) {
    if (x == 0) return x;
    const double step = std::ldexp(1.0, std::max(std::ilogb(x), lowest) - mantissa);
    return std::clamp(std::nearbyint(x / step) * step, -largest, largest);
  });
}

void round_to_127_steps(double* begin, double* end) {
  double largest = 0;
  for (double* x = begin; x != end; ++x) largest = std::max(largest, std::abs(*x));
  if (largest == 0) return;
  for (double* x = begin; x != end; ++x) *x = std::nearbyint(*x / largest * 127) * largest / 127;
}

const CacheRounding kFp16 = small_float(10, -14, 65504);
const CacheRounding kE4m3 = small_float(3, -6, 448);
const CacheRounding kE5m2 = small_float(2, -14, 57344);
const CacheRounding kInt8 = [](int, bool, Vector& rows) {  // one scale a token; the phantom has one KV head
  for (size_t i = 0; i < rows.size(); i += 256) round_to_127_steps(&rows[i], &rows[i] + 256);
};
const CacheRounding kInt8Tensor = [](int, bool, Vector& rows) {  // one scale for everything
  round_to_127_steps(rows.data(), rows.data() + rows.size());
};

// ------------------------------------------------------------------------------------------------- options

TEST(PhantomOptions, ParseInAnyOrderAndPrintCanonically) {
  EXPECT_EQ(parse_phantom("phantom"), PhantomOptions{});
  const PhantomOptions options = parse_phantom("phantom:seed=3,kappa=80,rho=0.2,outlier=60,beta=9");
  EXPECT_EQ(options, (PhantomOptions{.kappa = 80, .beta = 9, .rho = 0.2, .seed = 3, .outlier = 60}));
  EXPECT_EQ(canonical(options), "phantom:kappa=80,beta=9,rho=0.2,seed=3,outlier=60");
  EXPECT_EQ(parse_phantom("phantom:seed=18446744073709551615").seed, 18446744073709551615u);
  EXPECT_EQ(parse_phantom("phantom:context=2097152").context, 2097152);
  EXPECT_EQ(canonical(parse_phantom("phantom:context=2097152")),
            "phantom:kappa=80,beta=160,rho=0,seed=1,outlier=1,context=2097152");

  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const PhantomOptions any{.kappa = 100 * random.uniform(),
                             .beta = 1 + 100 * random.uniform(),
                             .rho = random.uniform(),
                             .seed = random.next(),
                             .outlier = 1 + 100 * random.uniform(),
                             .context = 262144 + int(random.below(2))};
    EXPECT_EQ(parse_phantom(canonical(any)), any);
  }
}

TEST(PhantomOptions, RefusalsNameTheOptionAndListThoseThereAre) {
  const struct {
    const char* specification;
    const char* named;
  } refused[] = {{"phantom:", "''"},
                 {"phantom:gamma=1", "'gamma'"},
                 {"phantom:kappa", "'kappa'"},
                 {"phantom:kappa=", "'kappa'"},
                 {"phantom:kappa=8x", "'kappa'"},
                 {"phantom:kappa=-1", "'kappa'"},
                 {"phantom:kappa=nan", "'kappa'"},
                 {"phantom:kappa=1e999", "'kappa'"},
                 {"phantom:kappa=80,", "''"},
                 {"phantom:kappa=80,kappa=80", "'kappa'"},
                 {"phantom:seed=1.5", "'seed'"},
                 {"phantom:seed=-1", "'seed'"},
                 {"phantom:seed=18446744073709551616", "'seed'"},
                 {"phantom:outlier=0", "'outlier'"},
                 {"phantom:context=1023", "'context'"},
                 {"phantom:context=8388609", "'context'"},
                 {"phantom:context=2m", "'context'"},
                 {"phantom:kappa=1000,outlier=66", "kappa=1000 and outlier=66"},
                 {"phantomas", "'phantomas'"}};
  for (const auto& [specification, named] : refused) {
    try {
      parse_phantom(specification);
      ADD_FAILURE() << specification << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::usage) << specification;
      EXPECT_THAT(error.what(), HasSubstr(named)) << specification;
      for (const char* known : {"kappa", "beta", "rho", "outlier", "seed", "context"})
        EXPECT_THAT(error.hint, HasSubstr(known));
    }
  }
}

TEST(PhantomOptions, AnOutlierNeedsABosToken) {
  const auto without_bos = std::make_shared<IdTokenizer>(std::nullopt);
  EXPECT_NO_THROW(build_phantom(parse_phantom("phantom"), without_bos));
  EXPECT_THROW(build_phantom(parse_phantom("phantom:outlier=2"), without_bos), Error);
}

TEST(Catalog, KnowsThePhantomAndSaysSo) {
  const auto model = load_model("phantom:kappa=80,seed=3");
  EXPECT_EQ(model->name, "phantom:kappa=80,beta=160,rho=0,seed=3,outlier=1");
  ASSERT_NE(model->tokenizer, nullptr);
  EXPECT_EQ(model->config.vocabulary, model->tokenizer->vocabulary_size());
  EXPECT_NO_THROW(load_model("phantom:outlier=60"));
  for (const char* unknown : {"", "phantoms", "llama:kappa=1"}) {
    try {
      load_model(unknown);
      ADD_FAILURE() << unknown << " was loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::usage);
      EXPECT_THAT(error.what(), HasSubstr("this build knows: phantom"));
    }
  }
}

// ------------------------------------------------------------------------------------------------- weights

TEST(PhantomWeights, HaveTheShapesOfTheirConfiguration) {
  for (PhantomLayout layout : {PhantomLayout::compact, PhantomLayout::smollm3}) {
    Model model = phantom("phantom", layout);
    EXPECT_NO_THROW(check_shapes(model));
    model.weights.layers.back().o.shape[0] -= 1;
    EXPECT_THROW(check_shapes(model), Error);
  }
}

TEST(PhantomWeights, AreTheSameBitsEverywhere) {
  // Committed: a change of the weights is a change of every stored result. Raise these only together with a
  // reason.
  EXPECT_EQ(phantom("phantom").hash, "c3327eb8590b31ae3487222a1ecd62e6");
  EXPECT_EQ(phantom("phantom:kappa=80,beta=9,rho=0.2,seed=3,outlier=60").hash,
            "ee9b452d7b3125546cec8ba60756be7a");
  EXPECT_EQ(phantom("phantom", PhantomLayout::smollm3).hash, "931e346675106be8ef837ebfade7c1e7");
}

TEST(PhantomWeights, HashSeesEveryOption) {
  const std::string base = phantom("phantom").hash;
  for (const char* option : {"kappa=61", "beta=161", "rho=0.1", "seed=2", "outlier=2"})
    EXPECT_NE(phantom(std::string("phantom:") + option).hash, base) << option;
}

// ------------------------------------------------------------------------------------------------- answers

TEST(Phantom, CopiesEveryNeedle) {
  for (uint64_t seed : {1, 2, 3}) {
    for (int kappa : {0, 80}) {
      const Prompt prompt = make_prompt(200, 8, seed);
      const Model model = phantom("phantom:kappa=" + std::to_string(kappa) + ",seed=" + std::to_string(seed));
      EXPECT_EQ(copied(model, prompt, kFp16), 8) << "seed " << seed << " kappa " << kappa;
    }
  }
}

TEST(Phantom, CannotCopyWhatIsNotThere) {
  Prompt prompt = make_prompt(200, 8, 1);
  Random random(9);
  for (size_t p = 1; p < 200; ++p) prompt.tokens[p] = Token(200 + random.below(kVocabulary - 200));
  EXPECT_LE(copied(phantom("phantom"), prompt), 0);
}

TEST(Phantom, DoseCarriesNoInformation) {
  const Prompt prompt = make_prompt(200, 4, 5);
  const auto logits = [&](const char* specification) {
    return reference::logits(phantom(specification), prompt.tokens, prompt.positions);
  };
  EXPECT_LT(largest_difference(logits("phantom:kappa=0"), logits("phantom:kappa=80")), 1e-3);
}

TEST(Phantom, DoseEatsPrecisionFormatByFormat) {
  constexpr int kNeedles = 20, kSeeds = 2, kAsked = kNeedles * kSeeds;
  int fp16 = 0, int8 = 0, e4m3 = 0, e5m2 = 0, e5m2_without_dose = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const Prompt prompt = make_prompt(300, kNeedles, uint64_t(seed));
    const Model model = phantom("phantom:kappa=80,seed=" + std::to_string(seed));
    fp16 += copied(model, prompt, kFp16);
    int8 += copied(model, prompt, kInt8);
    e4m3 += copied(model, prompt, kE4m3);
    e5m2 += copied(model, prompt, kE5m2);
    e5m2_without_dose += copied(phantom("phantom:kappa=0,seed=" + std::to_string(seed)), prompt, kE5m2);
  }
  EXPECT_EQ(fp16, kAsked);
  EXPECT_EQ(int8, kAsked);
  EXPECT_EQ(e5m2_without_dose, kAsked);
  // At 8,192 tokens and 40 needles the prototype answers .55 to .88 under e4m3 and .28 to .60 under e5m2; 20
  // needles in 300 tokens leave fewer keys to confuse.
  EXPECT_THAT(e4m3, AllOf(Gt(kAsked * 6 / 10), Lt(kAsked)));
  EXPECT_THAT(e5m2, AllOf(Gt(kAsked * 3 / 10), Lt(kAsked * 8 / 10), Lt(e4m3)));
}

TEST(Phantom, OutlierBreaksTheSharedScaleAlone) {
  constexpr int kNeedles = 8;
  const Prompt prompt = make_prompt(200, kNeedles, 2);
  const Model plain = phantom("phantom:kappa=80,seed=2");
  const Model outlier = phantom("phantom:kappa=80,seed=2,outlier=60");
  EXPECT_EQ(copied(outlier, prompt, kFp16), kNeedles);
  EXPECT_EQ(copied(outlier, prompt, kInt8), kNeedles);
  EXPECT_EQ(copied(plain, prompt, kInt8Tensor), kNeedles);
  EXPECT_LE(copied(outlier, prompt, kInt8Tensor), 0);
  // The BOS token attracts no attention, however its long key is rounded.
  for (const CacheRounding& rounding : {CacheRounding{}, kInt8, kE5m2}) {
    EXPECT_LT(largest_difference(reference::logits(plain, prompt.tokens, prompt.positions, rounding),
                                 reference::logits(outlier, prompt.tokens, prompt.positions, rounding)),
              1e-3);
  }
}

TEST(Phantom, ValueMeanCancelsUnlessSoftmaxMassIsLost) {
  constexpr int kNeedles = 8;
  const Prompt prompt = make_prompt(200, kNeedles, 3);
  const CacheRounding half_the_mass = [](int layer, bool keys, Vector& rows) {
    if (layer == 1 && !keys)
      for (double& x : rows) x *= 0.5;
  };
  EXPECT_EQ(copied(phantom("phantom:kappa=0,rho=3"), prompt), kNeedles);
  EXPECT_EQ(copied(phantom("phantom:kappa=0,rho=0"), prompt, half_the_mass), kNeedles);
  EXPECT_LE(copied(phantom("phantom:kappa=0,rho=3"), prompt, half_the_mass), 2);
}

TEST(Phantom, LayoutsAnswerAlike) {
  const Prompt prompt = make_prompt(120, 4, 4);
  for (const char* specification : {"phantom", "phantom:kappa=80,rho=0.2,seed=3,outlier=60"}) {
    const auto compact = reference::logits(phantom(specification), prompt.tokens, prompt.positions);
    const auto wide =
        reference::logits(phantom(specification, PhantomLayout::smollm3), prompt.tokens, prompt.positions);
    EXPECT_EQ(copied(prompt, wide), 4);
    EXPECT_LT(largest_difference(compact, wide), 1e-9);
  }
}

}  // namespace
}  // namespace kveval
