#include "engine/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "engine/cpu/constants.h"
#include "engine/error.h"
#include "engine/kv/codec.h"
#include "engine/random.h"
#include "tests/engine/levels.h"

namespace kveval::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Format kFormats[] = {Format::f32,  Format::fp16, Format::bf16,
                               Format::e4m3, Format::e5m2, Format::int8};
constexpr ScaleAxis kAxes[] = {ScaleAxis::none, ScaleAxis::tensor, ScaleAxis::token_head};

struct Case {
  int head_dim = 64, kv_heads = 1, group = 1, window = 0, page_tokens = 64;
  CachePart k, v;
  int heads() const { return kv_heads * group; }
};

std::string describe(const Case& c) {
  const auto part = [](const CachePart& p) {
    return name_of(p.format) + std::string("/") + std::to_string(int(p.scale));
  };
  return "head_dim " + std::to_string(c.head_dim) + ", KV heads " + std::to_string(c.kv_heads) + ", group " +
         std::to_string(c.group) + ", window " + std::to_string(c.window) + ", page " +
         std::to_string(c.page_tokens) + ", k " + part(c.k) + ", v " + part(c.v);
}

template <class T>
const T& pick(Random& random, const std::vector<T>& from) {
  return from[random.below(from.size())];
}

CachePart random_part(Random& random) {
  CachePart part;
  part.format = kFormats[random.below(6)];
  const bool eight_bits = kv::code_bytes(part.format) == 1;
  part.scale = !eight_bits                   ? ScaleAxis::none
               : part.format == Format::int8 ? kAxes[1 + random.below(2)]
                                             : kAxes[random.below(3)];
  return part;
}

Case random_case(Random& random) {
  Case c;
  c.head_dim = pick<int>(random, {64, 64, 128, 256});
  c.kv_heads = 1 + int(random.below(2));
  c.group = 1 + int(random.below(9));
  c.window = pick<int>(random, {0, 0, 1, 16, 63, 64, 65, 200, 1100});
  c.page_tokens = pick<int>(random, {64, 128, 256});
  c.k = random_part(random);
  c.v = random_part(random);
  return c;
}

// Queries, and keys and values as codes; pages are laid out on demand, for any page size and length.
class Context {
 public:
  Context(const Case& c, size_t tokens, uint64_t seed) : c_(c) {
    Random random(seed);
    const size_t kv = tokens * size_t(c.kv_heads), row = size_t(c.head_dim);
    q_.resize(tokens * size_t(c.heads()) * row);
    for (float& x : q_) x = float(random.normal());
    for (Side* side : {&k_, &v_}) {
      side->part = side == &k_ ? c.k : c.v;
      side->codes.resize(kv * row * kv::code_bytes(side->part.format));
      side->fixed.assign(64, 0.011f);
      for (size_t i = 0; i < kv; i++)
        side->scales.push_back(side->part.scale == ScaleAxis::token_head
                                   ? 0.005f + float(random.uniform()) * 0.01f
                                   : side->fixed[0]);
      for (size_t i = 0; i < kv * row; i++) {
        float x = float(random.normal()) * (side == &k_ ? 2.f : 1.f);
        if (side->part.scale != ScaleAxis::none) x /= side->scales[i / row];
        kv::encode(side->part.format, x, &side->codes[i * kv::code_bytes(side->part.format)]);
      }
    }
  }

  Context with_pages(int page_tokens) const {
    Context copy = *this;
    copy.c_.page_tokens = page_tokens;
    return copy;
  }

  // Queries, keys and values from token `from` on become those of `other`.
  void graft(const Context& other, size_t from) {
    const auto move = [from](auto& to, const auto& source, size_t per_token) {
      std::copy(source.begin() + std::ptrdiff_t(from * per_token), source.end(),
                to.begin() + std::ptrdiff_t(from * per_token));
    };
    move(q_, other.q_, q_stride());
    for (Side Context::*side : {&Context::k_, &Context::v_}) {
      const size_t row =
          size_t(c_.kv_heads) * size_t(c_.head_dim) * kv::code_bytes((this->*side).part.format);
      move((this->*side).codes, (other.*side).codes, row);
      move((this->*side).scales, (other.*side).scales, size_t(c_.kv_heads));
    }
  }

  size_t q_stride() const { return size_t(c_.heads()) * size_t(c_.head_dim); }
  const float* q(size_t token) const { return &q_[token * q_stride()]; }

  float key(size_t token, int head, int d) const { return value(k_, token, head, d); }
  float value(size_t token, int head, int d) const { return value(v_, token, head, d); }

  kv::PageLayout layout() const {
    Profile profile;
    profile.k = c_.k;
    profile.v = c_.v;
    kv::PageLayout layout =
        kv::page_layout({c_.kv_heads, c_.head_dim, c_.window}, profile, 0, c_.page_tokens);
    layout.k_static = k_.fixed.data();
    layout.v_static = v_.fixed.data();
    return layout;
  }

  // Page `index` with its positions below `length` written. What is not written: values are zero codes, keys
  // and their scales anything at all.
  std::vector<uint8_t> page(size_t index, size_t length) const {
    const kv::PageLayout layout = this->layout();
    std::vector<uint8_t> bytes(layout.page_bytes, 0);
    for (int head = 0; head < c_.kv_heads; head++)
      for (int t = 0; t < layout.tiles_per_page(); t++) {
        const kv::Tile tile = layout.tile(bytes.data(), head, t);
        const size_t first = index * size_t(c_.page_tokens) + size_t(t) * 64;
        write_scales(bytes, c_.k, k_, tile.k_scale, first, length, head,
                     std::numeric_limits<float>::quiet_NaN());
        write_scales(bytes, c_.v, v_, tile.v_scale, first, length, head, 0.f);
        for (size_t j = 0; j < 64; j++)
          for (int d = 0; d < c_.head_dim; d++) {
            write_code(bytes, k_, tile.k, size_t(d) * 64 + j, first + j, length, head, d, true);
            write_code(bytes, v_, tile.v, j * size_t(c_.head_dim) + size_t(d), first + j, length, head, d,
                       false);
          }
      }
    return bytes;
  }

 private:
  struct Side {
    CachePart part;
    std::vector<uint8_t> codes;  // [token][kv head][head_dim]
    std::vector<float> scales;   // [token][kv head]
    std::vector<float> fixed;    // [64], the layer's one scale
  };

  size_t at(size_t token, int head, int d) const {
    return (token * size_t(c_.kv_heads) + size_t(head)) * size_t(c_.head_dim) + size_t(d);
  }
  float value(const Side& side, size_t token, int head, int d) const {
    const size_t i = at(token, head, d);
    const float x = kv::decode(side.part.format, &side.codes[i * kv::code_bytes(side.part.format)]);
    return side.part.scale == ScaleAxis::none ? x : x * side.scales[i / size_t(c_.head_dim)];
  }
  void write_code(std::vector<uint8_t>& bytes, const Side& side, const uint8_t* tile, size_t element,
                  size_t token, size_t length, int head, int d, bool poison) const {
    const size_t n = kv::code_bytes(side.part.format);
    uint8_t* to = &bytes[size_t(tile - bytes.data()) + element * n];
    if (token < length) {
      std::copy_n(&side.codes[at(token, head, d) * n], n, to);
    } else if (poison) {
      kv::encode(side.part.format, std::numeric_limits<float>::quiet_NaN(), to);
    }
  }
  void write_scales(std::vector<uint8_t>& bytes, const CachePart& part, const Side& side, const float* tile,
                    size_t first, size_t length, int head, float unwritten) const {
    if (part.scale != ScaleAxis::token_head) return;
    auto* to =
        reinterpret_cast<float*>(&bytes[size_t(reinterpret_cast<const uint8_t*>(tile) - bytes.data())]);
    for (size_t j = 0; j < 64; j++)
      to[j] = first + j < length ? side.scales[(first + j) * size_t(c_.kv_heads) + size_t(head)] : unwritten;
  }

  Case c_;
  std::vector<float> q_;
  Side k_, v_;
};

// A context's page table as it grows.
class Pages {
 public:
  // Positions first .. length are written, pages that no query from `first` on sees are given back.
  void grow(const Case& c, const Context& context, size_t first, size_t length) {
    const size_t per_page = size_t(c.page_tokens);
    for (size_t i = table.empty() ? 0 : first / per_page; i * per_page < length; i++) {
      bytes_.resize(std::max(bytes_.size(), i + 1));
      bytes_[i] = context.page(i, length);
      table.resize(bytes_.size());
      table[i] = bytes_[i].data();
    }
    for (size_t i = 0; c.window != 0 && (i + 1) * per_page + size_t(c.window) <= first + 1; i++) {
      bytes_[i].clear();
      bytes_[i].shrink_to_fit();
      table[i] = nullptr;
    }
  }
  std::vector<const uint8_t*> table;

 private:
  std::vector<std::vector<uint8_t>> bytes_;
};

// ---------------------------------------------------------------------- two references

float exp2_polynomial(float x, std::span<const float> coefficients = kExp2) {
  if (!(x >= -126.f)) return 0;
  const float n = std::nearbyint(x), r = x - n;
  float p = coefficients.back();
  for (size_t i = coefficients.size() - 1; i-- > 0;) p = std::fmaf(p, r, coefficients[i]);
  return std::ldexp(p, int(n));
}

float fold16(const float* l) {
  float a[8], b[4];
  for (int i = 0; i < 8; i++) a[i] = l[i] + l[i + 8];
  for (int i = 0; i < 4; i++) b[i] = a[i] + a[i + 4];
  return (b[0] + b[2]) + (b[1] + b[3]);
}

// One query head at one position, in the absolute order, straight from the values.
std::vector<float> in_order(Compute compute, const Case& c, const Context& context, size_t position,
                            int head) {
  const Arithmetic arithmetic{compute};
  const auto weight_of = [compute](float x) {
    return compute == Compute::float32 ? exp2_polynomial(x) : exp2_polynomial(x, kExp2Short);
  };
  const size_t n = size_t(c.head_dim);
  const int kv_head = head / c.group;
  const float factor = float(1.4426950408889634 / std::sqrt(double(c.head_dim)));
  const float* q = context.q(position) + size_t(head) * n;
  const auto sees = [&](size_t key) {
    return key <= position && (c.window == 0 || key + size_t(c.window) > position);
  };
  std::vector<float> total(n, 0.f), o(n, 0.f);
  float total_max = -kInfinity, total_sum = 0, m = -kInfinity, l[16] = {};
  for (size_t tile = 0; tile <= position / 64; tile++) {
    if (sees(std::min(tile * 64 + 63, position))) {
      float s[64], most = m;
      for (size_t j = 0; j < 64; j++) {
        s[j] = 0;
        if (!sees(tile * 64 + j)) {
          s[j] = -kInfinity;
          continue;
        }
        for (size_t d = 0; d < n; d++)
          s[j] =
              arithmetic.multiply_add(arithmetic.operand(q[d] * factor),
                                      arithmetic.operand(context.key(tile * 64 + j, kv_head, int(d))), s[j]);
        most = std::max(most, s[j]);
      }
      const float correction = weight_of(m - most);
      m = most;
      for (float& x : s) x = weight_of(x - m);
      for (size_t i = 0; i < 16; i++)
        l[i] = std::fmaf(l[i], correction, (s[i] + s[i + 16]) + (s[i + 32] + s[i + 48]));
      for (size_t d = 0; d < n; d++) {
        o[d] *= correction;
        for (size_t j = 0; j < 64; j++)
          if (sees(tile * 64 + j))
            o[d] = arithmetic.multiply_add(arithmetic.operand(s[j]),
                                           arithmetic.operand(context.value(tile * 64 + j, kv_head, int(d))),
                                           o[d]);
      }
    }
    if ((tile % 16 == 15 || tile == position / 64) && m > -kInfinity) {
      const float most = std::max(total_max, m), left = exp2_polynomial(total_max - most),
                  right = exp2_polynomial(m - most);
      for (size_t d = 0; d < n; d++) total[d] = std::fmaf(o[d], right, total[d] * left);
      total_sum = std::fmaf(fold16(l), right, total_sum * left);
      total_max = most;
      std::fill(o.begin(), o.end(), 0.f);
      std::fill(l, l + 16, 0.f);
      m = -kInfinity;
    }
  }
  const float inverse = 1 / total_sum;
  for (float& x : total) x = std::fmaf(x, inverse, 0.f);
  return total;
}

// softmax(q k / sqrt(head_dim)) v in float64.
std::vector<double> in_float64(const Case& c, const Context& context, size_t position, int head) {
  const size_t n = size_t(c.head_dim),
               first = c.window == 0 || position < size_t(c.window) ? 0 : position + 1 - size_t(c.window);
  const float* q = context.q(position) + size_t(head) * n;
  std::vector<double> score;
  for (size_t key = first; key <= position; key++) {
    double s = 0;
    for (size_t d = 0; d < n; d++) s += double(q[d]) * double(context.key(key, head / c.group, int(d)));
    score.push_back(s / std::sqrt(double(n)));
  }
  const double most = *std::max_element(score.begin(), score.end());
  double sum = 0;
  std::vector<double> out(n, 0.0);
  for (size_t key = first; key <= position; key++) {
    const double weight = std::exp(score[key - first] - most);
    sum += weight;
    for (size_t d = 0; d < n; d++) out[d] += weight * double(context.value(key, head / c.group, int(d)));
  }
  for (double& x : out) x /= sum;
  return out;
}

// ---------------------------------------------------------------------- runs

// Outputs of tokens first .. first + count, fed in chunks; each chunk sees a cache that ends with it.
std::vector<float> attend(const Kernels& kernels, ThreadPool& pool, const Case& c, const Context& context,
                          size_t first, size_t count, size_t chunk) {
  Attention attention(kernels, pool);
  const kv::PageLayout layout = context.layout();
  std::vector<float> out(count * context.q_stride(), std::numeric_limits<float>::quiet_NaN());
  Pages pages;
  for (size_t at = first; at < first + count; at += chunk) {
    const size_t n = std::min(chunk, first + count - at);
    pages.grow(c, context, at, at + n);
    const AttentionSegment segment{pages.table.data(), at, int(n), context.q(at),
                                   &out[(at - first) * context.q_stride()]};
    attention.run({c.heads(), c.window, &layout}, {&segment, 1});
  }
  return out;
}

class AttentionLevels : public EachLevel {};

TEST_P(AttentionLevels, GivesTheBitsOfTheDefinition) {
  Random random(11);
  ThreadPool one(1), two(2);
  for (int trial = 0; trial < 36; trial++) {
    const Case c = random_case(random);
    const size_t tokens = trial % 4 == 0 ? 1030 + random.below(400) : 1 + random.below(300);
    const size_t count = std::min<size_t>(tokens, pick<size_t>(random, {1, 1, 2, 7, 40}));
    const Context context(c, tokens, random.next());
    const std::vector<float> out =
        attend(*kernels_, trial % 2 == 0 ? one : two, c, context, tokens - count, count, count);
    for (int sample = 0; sample < 4; sample++) {
      const size_t token = sample == 0 ? 0 : random.below(count);
      const int head = int(random.below(size_t(c.heads())));
      const size_t at = token * context.q_stride() + size_t(head * c.head_dim);
      const std::vector<float> expected =
          in_order(kernels_->compute, c, context, tokens - count + token, head);
      const std::vector<float> got(&out[at], &out[at] + c.head_dim);
      ASSERT_EQ(first_difference(got, expected), -1) << describe(c) << ", " << tokens << " tokens, the last "
                                                     << count << ", token " << token << ", head " << head;
    }
  }
}

TEST_P(AttentionLevels, IsSoftmaxAttention) {
  Random random(12);
  ThreadPool pool(1);
  // Operands of 8 bits: 2e-3 of a score, of a weight and of a value each.
  const double tolerance = kernels_->compute == Compute::float32 ? 2e-5 : 3e-2;
  for (int trial = 0; trial < 12; trial++) {
    Case c = random_case(random);
    c.window = trial % 3 == 0 ? 100 : 0;
    const size_t tokens = 1 + random.below(1500);
    const Context context(c, tokens, random.next());
    const std::vector<float> out = attend(*kernels_, pool, c, context, tokens - 1, 1, 1);
    const int head = int(random.below(size_t(c.heads())));
    const std::vector<double> expected = in_float64(c, context, tokens - 1, head);
    for (size_t d = 0; d < expected.size(); d++)
      EXPECT_NEAR(out[size_t(head * c.head_dim) + d], expected[d], tolerance) << describe(c);
  }
}

// Every chunking, page size and thread count: the same bits as the definition level in one go.
TEST_P(AttentionLevels, ChunksPagesAndThreadsDoNotMatter) {
  Random random(13);
  ThreadPool one(1), two(2), three(3);
  ThreadPool* const pools[] = {&one, &two, &three};
  for (int trial = 0; trial < 6; trial++) {
    Case c = random_case(random);
    c.head_dim = trial % 4 == 3 ? 128 : 64;
    if (trial % 2 == 0) c.window = 0;
    const size_t count = 70 + random.below(120),
                 tokens = trial % 4 == 0 ? 1100 + count : count + random.below(200);
    const Context context(c, tokens, random.next());
    const std::vector<float> whole =
        attend(*kernels_named("scalar", kernels_->compute), one, c, context, tokens - count, count, count);
    for (const size_t chunk : {1u, 7u, 64u, 512u}) {
      c.page_tokens = pick<int>(random, {64, 128, 256});
      const size_t n = chunk == 1 ? 30 : count;
      const Context other_pages = context.with_pages(c.page_tokens);
      const std::vector<float> cut =
          attend(*kernels_, *pools[random.below(3)], c, other_pages, tokens - n, n, chunk);
      const std::vector<float> expected(whole.end() - std::ptrdiff_t(cut.size()), whole.end());
      ASSERT_EQ(first_difference(cut, expected), -1) << describe(c) << ", chunks of " << chunk;
    }
  }
}

// Window edges at every offset within a tile and a page, with pages released as early as they may be.
TEST_P(AttentionLevels, WindowsEndWhereTheyShould) {
  Random random(15);
  ThreadPool pool(1);
  for (const int window : {1, 2, 63, 64, 65, 100, 129}) {
    Case c;
    c.window = window;
    c.page_tokens = window % 2 == 0 ? 64 : 128;
    const Context context(c, 330, random.next());
    const std::vector<float> out = attend(*kernels_, pool, c, context, 190, 140, 1);
    const std::vector<float> chunks = attend(*kernels_, pool, c, context, 190, 140, 9);
    EXPECT_EQ(first_difference(out, chunks), -1) << describe(c);
    for (size_t token = 0; token < 140; token++) {
      const std::vector<float> got(&out[token * 64], &out[token * 64] + 64);
      ASSERT_EQ(first_difference(got, in_order(kernels_->compute, c, context, 190 + token, 0)), -1)
          << describe(c) << ", position " << 190 + token;
    }
  }
}

// Forks of one prefix in one run, some at other positions than others: each as if it were alone.
TEST_P(AttentionLevels, SegmentsThatSharePagesAreAsIfAlone) {
  Random random(14);
  ThreadPool one(1), two(2);
  for (int trial = 0; trial < 12; trial++) {
    Case c = random_case(random);
    if (trial % 3 != 0) c.window = 0;
    c.head_dim = trial % 4 == 3 ? 256 : 64;
    const size_t prefix = trial % 4 == 0 ? 1000 + random.below(200) : random.below(300), most = 90;
    const Context parent(c, prefix + most, random.next());
    const size_t forks = 1 + random.below(trial % 2 == 0 ? 12 : 3);
    std::vector<Context> contexts;
    std::vector<Pages> pages;
    std::vector<size_t> first, count;
    for (size_t f = 0; f < forks; f++) {
      contexts.push_back(parent);
      contexts.back().graft(Context(c, prefix + most, random.next()), prefix);
      first.push_back(prefix + random.below(trial % 2 == 0 ? 4 : 60));
      count.push_back(1 + random.below(trial % 2 == 0 ? 2 : 30));
      pages.emplace_back();
      pages.back().grow(c, contexts[f], first[f], first[f] + count[f]);
      // What lies wholly in the prefix is the first fork's page for all, where that one still has it.
      for (size_t i = 0; f > 0 && (i + 1) * size_t(c.page_tokens) <= prefix; i++)
        if (pages[f].table[i] && pages[0].table[i]) pages[f].table[i] = pages[0].table[i];
    }
    const kv::PageLayout layout = parent.layout();
    const auto segment = [&](size_t f, std::vector<float>& out) {
      out.assign(count[f] * parent.q_stride(), std::numeric_limits<float>::quiet_NaN());
      return AttentionSegment{pages[f].table.data(), first[f], int(count[f]), contexts[f].q(first[f]),
                              out.data()};
    };
    Attention attention(*kernels_, trial % 2 == 0 ? two : one);
    std::vector<std::vector<float>> together(forks);
    std::vector<AttentionSegment> segments;
    for (size_t f = 0; f < forks; f++) segments.push_back(segment(f, together[f]));
    attention.run({c.heads(), c.window, &layout}, segments);
    for (size_t f = 0; f < forks; f++) {
      std::vector<float> alone;
      const AttentionSegment only = segment(f, alone);
      attention.run({c.heads(), c.window, &layout}, {&only, 1});
      ASSERT_EQ(first_difference(together[f], alone), -1) << describe(c) << ", fork " << f << " of " << forks;
    }
  }
}

TEST_P(AttentionLevels, RefusesHeadsItHasNoKernelFor) {
  ThreadPool pool(1);
  Attention attention(*kernels_, pool);
  Case c;
  c.head_dim = 80;
  kv::PageLayout layout = Context(c, 1, 1).layout();
  try {
    attention.run({1, 0, &layout}, {});
    ADD_FAILURE() << "heads of 80";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind, ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("80"), std::string::npos);
  }
  layout.head_dim = 64;
  layout.kv_heads = 2;
  EXPECT_THROW(attention.run({3, 0, &layout}, {}), Error);
  attention.run({4, 0, &layout}, {});  // no queries: nothing to do
}

KVEVAL_EACH_LEVEL_AND_ARITHMETIC(AttentionLevels);

}  // namespace
}  // namespace kveval::cpu
