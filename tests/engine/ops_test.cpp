#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/error.h"
#include "engine/random.h"
#include "tests/engine/levels.h"

namespace kveval::cpu {
namespace {

std::vector<float> random_values(Random& random, size_t n, double spread) {
  std::vector<float> values(n);
  for (float& v : values) v = float(random.normal() * spread);
  return values;
}

const Kernels& scalar() { return *kernels_named("scalar"); }

class Ops : public EachLevel {
 protected:
  // Whatever `compute` returns must have the bits the definition gives.
  template <class Compute>
  void expect_scalar_bits(Compute compute, const std::string& what) {
    EXPECT_EQ(first_difference(compute(*kernels_), compute(scalar())), -1) << what;
  }
};

TEST_P(Ops, RmsNorm) {
  Random random(1);
  for (const size_t n : {1u, 15u, 16u, 17u, 64u, 576u, 1000u}) {
    const auto x = random_values(random, n, 3), weight = random_values(random, n, 1);
    const auto compute = [&](const Kernels& kernels) {
      std::vector<float> y(n);
      kernels.rms_norm(x.data(), weight.data(), int(n), 1e-5f, y.data());
      return y;
    };
    expect_scalar_bits(compute, "n = " + std::to_string(n));
    double squares = 0;
    for (const float v : x) squares += double(v) * double(v);
    const std::vector<float> y = compute(*kernels_);
    for (size_t i = 0; i < n; i++) {
      const double expected = double(x[i]) / std::sqrt(squares / double(n) + 1e-5) * double(weight[i]);
      EXPECT_NEAR(y[i], expected, std::fabs(expected) * 1e-6);
    }
  }
}

TEST_P(Ops, RopeTurnsPairs) {
  Random random(2);
  for (const int head_dim : {16, 64, 128, 256}) {
    const size_t half = size_t(head_dim) / 2;
    const auto x = random_values(random, size_t(head_dim), 1);
    std::vector<float> cos(half), sin(half);
    for (size_t i = 0; i < half; i++) {
      const double angle = random.uniform() * 6.28;
      cos[i] = float(std::cos(angle));
      sin[i] = float(std::sin(angle));
    }
    for (const bool interleaved : {false, true}) {
      const auto compute = [&](const Kernels& kernels) {
        std::vector<float> y = x;
        (interleaved ? kernels.rope_interleaved : kernels.rope_halves)(y.data(), cos.data(), sin.data(),
                                                                       head_dim);
        return y;
      };
      expect_scalar_bits(compute, "head_dim = " + std::to_string(head_dim));
      const std::vector<float> y = compute(*kernels_);
      for (size_t i = 0; i < half; i++) {
        const size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        EXPECT_NEAR(y[a], double(x[a]) * cos[i] - double(x[b]) * sin[i], 1e-6);
        EXPECT_NEAR(y[b], double(x[a]) * sin[i] + double(x[b]) * cos[i], 1e-6);
      }
    }
  }
}

TEST_P(Ops, Add) {
  Random random(3);
  for (const size_t n : {1u, 16u, 37u, 500u}) {
    const auto x = random_values(random, n, 1), y = random_values(random, n, 1);
    std::vector<float> sum = x;
    kernels_->add(sum.data(), y.data(), n);
    for (size_t i = 0; i < n; i++) EXPECT_EQ(bits(sum[i]), bits(x[i] + y[i]));
  }
}

// Gates far beyond where the exponential (and GELU's cube) overflow included.
TEST_P(Ops, SiluAndGeluMultiply) {
  Random random(4);
  for (const size_t n : {1u, 16u, 37u, 4000u}) {
    auto gate = random_values(random, n, 8);
    const auto up = random_values(random, n, 1);
    gate[0] = n == 16 ? -2000.f : n == 37 ? 2000.f : n == 4000 ? -1e10f : -0.f;
    const auto check = [&](auto kernel, auto definition) {
      const auto compute = [&](const Kernels& kernels) {
        std::vector<float> y = gate;
        (kernels.*kernel)(y.data(), up.data(), n);
        return y;
      };
      expect_scalar_bits(compute, "n = " + std::to_string(n));
      const std::vector<float> y = compute(*kernels_);
      for (size_t i = 0; i < n; i++) {
        const double expected = definition(double(gate[i])) * double(up[i]);
        // The float32 argument of the exponential is off by its own rounding: relative error grows with
        // |gate|.
        EXPECT_NEAR(y[i], expected, std::fabs(expected) * 6e-6 + 1e-25) << "gate " << gate[i];
      }
    };
    check(&Kernels::silu_multiply, [](double g) { return g / (1 + std::exp(-g)); });
    check(&Kernels::gelu_multiply, [](double g) {
      const double y = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
      return g / (1 + std::exp(-2 * y));  // 0.5 g (1 + tanh(y)), without its cancellation below zero
    });
  }
}

TEST_P(Ops, LogSumExp) {
  Random random(5);
  for (const size_t n : {1u, 16u, 37u, 4096u, 5003u})
    for (const double spread : {0.1, 5.0, 80.0}) {
      const auto x = random_values(random, n, spread);
      const auto compute = [&](const Kernels& kernels) {
        return std::vector<float>{kernels.log_sum_exp(x.data(), n)};
      };
      expect_scalar_bits(compute, "n = " + std::to_string(n));
      const double most = double(*std::max_element(x.begin(), x.end()));
      double sum = 0;
      for (const float v : x) sum += std::exp(double(v) - most);
      const double expected = most + std::log(sum);
      EXPECT_NEAR(compute(*kernels_)[0], expected, 1e-6 * (1 + std::fabs(expected)));
    }
}

TEST_P(Ops, ArgmaxTakesTheFirstOfEquals) {
  Random random(6);
  for (const size_t n : {1u, 2u, 16u, 37u, 500u})
    for (int trial = 0; trial < 30; trial++) {
      std::vector<float> x(n);
      for (float& v : x) v = float(random.below(9)) - 20.f;  // all negative, many ties
      EXPECT_EQ(kernels_->argmax(x.data(), n), std::max_element(x.begin(), x.end()) - x.begin());
    }
  const std::vector<float> nothing(40, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(kernels_->argmax(nothing.data(), nothing.size()), 0);
}

KVEVAL_EACH_LEVEL(Ops);

TEST(Kernels, ChosenByName) {
  EXPECT_STREQ(kernels_wanted("scalar").name, "scalar");
  EXPECT_STREQ(kernels_wanted("").name, kernels_wanted(nullptr).name);
  for (const char* name : {"avx2", "avx512"}) {
    if (const Kernels* level = kernels_named(name)) {
      EXPECT_EQ(&kernels_wanted(name), level);
    } else {
      EXPECT_THROW(kernels_wanted(name), Error);
    }
  }
  EXPECT_EQ(kernels_named("neon"), nullptr);
  try {
    kernels_wanted("neon");
    ADD_FAILURE() << "neon exists";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind, ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("neon"), std::string::npos);
    EXPECT_NE(e.hint.find("scalar"), std::string::npos);
  }
}

TEST(Kernels, BfloatArithmeticIsNeverReplacedByAnother) {
  EXPECT_EQ(kernels_wanted("scalar", Compute::bfloat16).compute, Compute::bfloat16);
  EXPECT_EQ(kernels_wanted("scalar").compute, Compute::float32);
  EXPECT_EQ(kernels_named("avx2", Compute::bfloat16), nullptr);
  EXPECT_THROW(kernels_wanted("avx2", Compute::bfloat16), Error);
  if (const Kernels* level = kernels_named("avx512", Compute::bfloat16)) {
    EXPECT_EQ(&kernels_wanted(nullptr, Compute::bfloat16), level);
    EXPECT_EQ(level->compute, Compute::bfloat16);
    return;
  }
  try {
    kernels_wanted(nullptr, Compute::bfloat16);
    ADD_FAILURE() << "bfloat16 arithmetic without its instructions";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind, ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("AVX512_BF16"), std::string::npos);
  }
}

}  // namespace
}  // namespace kveval::cpu
