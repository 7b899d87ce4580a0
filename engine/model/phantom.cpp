#include "engine/model/phantom.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/deterministic_math.h"
#include "engine/error.h"
#include "engine/model/rope.h"
#include "engine/random.h"

namespace kveval {
namespace {

using Stream = PhantomStream;
using Vector = std::vector<double>;

constexpr int kHeadDim = 256;
constexpr int kOffsets = 8;  // heads of layer 0
constexpr int kWindow = 16;
constexpr int kFeedForward = 16;  // zeros; one block of the engines' row interleave
constexpr int kLeastContext = 1024;
constexpr double kTheta = 1e4;
constexpr double kScoreScale = 16;  // sqrt(kHeadDim): attention divides by it
constexpr double kConstant = 16;    // the stream's other parts have squared length 2 to 3, this one 256
// Values are stored four times their size, so that codes of length 1 over 64 elements stay clear of subnormal
// FP8.
constexpr double kValueGain = 4;
constexpr double kHeadGain = 20;  // logits: the right token near 29, the best wrong one near 13
// Layer 0: its key has length 4 spread over the 24 fastest RoPE pairs; offset j beats its neighbours by about
// 400 * 0.11 nats, so each head reads one token.
constexpr int kOffsetPairs = 24;
constexpr double kOffsetKeyLength = 4;
constexpr double kOffsetSharpness = 400;
constexpr double kLargestHalf = 65504;

// ---- options

struct NumberOption {
  const char* name;
  double PhantomOptions::*member;
  double low, high;
};

// A key's largest element is below its length, kappa * outlier, which parse_phantom keeps within fp16.
constexpr NumberOption kNumberOptions[] = {{"kappa", &PhantomOptions::kappa, 0, 1000},
                                           {"beta", &PhantomOptions::beta, 1, 10000},
                                           {"rho", &PhantomOptions::rho, 0, 100},
                                           {"outlier", &PhantomOptions::outlier, 1, 10000}};

std::string known_options() {
  std::string text = "options of the phantom: ";
  for (const NumberOption& option : kNumberOptions)
    text += fmt::format("{} ({} to {}), ", option.name, option.low, option.high);
  return text + fmt::format("seed (a whole number from 0 to 2^64 - 1), context ({} to {} tokens)",
                            kLeastContext, kMaxContext);
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::usage, message, known_options());
}

template <class Number>
std::optional<Number> whole_text_as(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

void set_option(PhantomOptions& options, std::string_view name, std::string_view value) {
  if (name == "seed") {
    const auto seed = whole_text_as<uint64_t>(value);
    if (!seed)
      refuse(fmt::format("phantom option 'seed' is '{}', not a whole number from 0 to 2^64 - 1", value));
    options.seed = *seed;
    return;
  }
  if (name == "context") {
    const auto tokens = whole_text_as<int>(value);
    if (!tokens || *tokens < kLeastContext || *tokens > kMaxContext)
      refuse(fmt::format("phantom option 'context' is '{}', not a whole number from {} to {}", value,
                         kLeastContext, kMaxContext));
    options.context = *tokens;
    return;
  }
  for (const NumberOption& option : kNumberOptions) {
    if (name != option.name) continue;
    const auto number = whole_text_as<double>(value);
    if (!number || !(*number >= option.low && *number <= option.high))
      refuse(fmt::format("phantom option '{}' is '{}', not a number from {} to {}", name, value, option.low,
                         option.high));
    options.*option.member = *number;
    return;
  }
  refuse(fmt::format("unknown phantom option '{}'", name));
}

// Length of a layer-1 key: a context code of length 1 and the dose, at right angles.
double key_length(const PhantomOptions& options) { return std::sqrt(1 + options.kappa * options.kappa); }

// ---- random parts

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector normal_vector(int size, Random& random) {
  Vector v(static_cast<size_t>(size));
  for (double& x : v) x = random.normal();
  return v;
}

void normalise(Vector& v) {
  const double length = std::sqrt(dot(v, v));
  for (double& x : v) x /= length;
}

Vector unit_vector(int size, Random& random) {
  Vector v = normal_vector(size, random);
  normalise(v);
  return v;
}

// `count` random orthonormal vectors (Gram-Schmidt, each direction removed twice to reach rounding error).
std::vector<Vector> orthonormal(int count, int size, Random& random) {
  std::vector<Vector> basis;
  while (basis.size() < size_t(count)) {
    Vector v = unit_vector(size, random);
    for (int pass = 0; pass < 2; ++pass) {
      for (const Vector& b : basis) {
        const double along = dot(v, b);
        for (size_t i = 0; i < v.size(); ++i) v[i] -= along * b[i];
      }
    }
    normalise(v);
    basis.push_back(std::move(v));
  }
  return basis;
}

// Everything drawn. Each part has its own generator, so a larger vocabulary leaves the others as they are.
struct Parts {
  std::vector<Vector> codes;  // [vocabulary][kCode], length 1
  std::vector<Vector>
      projections;            // [kOffsets][kContext * kCode], R_1 .. R_8 row-major, columns of length about 1
  std::vector<Vector> match;  // [kContext][kHeadDim], orthonormal: where layer 1 compares B with A
  Vector dose;                // [kHeadDim], length 1, at right angles to `match`
  Vector value_mean;          // [kCode], length 1
  std::vector<double> share;  // [kOffsets], how much of a context each offset makes up; squares sum to 1
};

Parts draw_parts(uint64_t seed, int vocabulary) {
  Random seeds(seed);
  Random codes(seeds.next()), projections(seeds.next()), directions(seeds.next()), mean(seeds.next());
  Parts parts;
  for (int token = 0; token < vocabulary; ++token) parts.codes.push_back(unit_vector(Stream::kCode, codes));
  for (int offset = 0; offset < kOffsets; ++offset) {
    Vector projection = normal_vector(Stream::kContext * Stream::kCode, projections);
    for (double& x : projection) x /= std::sqrt(double(Stream::kContext));
    parts.projections.push_back(std::move(projection));
  }
  // The last head dimension stays free for the outlier.
  parts.match = orthonormal(Stream::kContext + 1, kHeadDim - 1, directions);
  for (Vector& direction : parts.match) direction.push_back(0.0);
  parts.dose = std::move(parts.match.back());
  parts.match.pop_back();
  parts.value_mean = unit_vector(Stream::kCode, mean);
  for (int offset = 0; offset < kOffsets; ++offset)  // 1 down to 0.7: nearer tokens count more
    parts.share.push_back(1 - 0.3 * offset / (kOffsets - 1));
  normalise(parts.share);
  return parts;
}

// ---- layers

// Row-major, all zero at first.
struct Matrix {
  Matrix(int rows_, int cols_) : rows(rows_), cols(cols_), values(size_t(rows) * size_t(cols)) {}
  int rows, cols;
  std::vector<float> values;
};

float& at(Matrix& matrix, int row, int col) {
  return matrix.values[size_t(row) * size_t(matrix.cols) + size_t(col)];
}

Tensor tensor_of(Matrix matrix) { return float_tensor(matrix.rows, matrix.cols, std::move(matrix.values)); }

struct AttentionMatrices {
  explicit AttentionMatrices(const LayerConfig& layer)
      : q(layer.heads * kHeadDim, Stream::width),
        k(layer.kv_heads * kHeadDim, Stream::width),
        v(layer.kv_heads * kHeadDim, Stream::width),
        o(Stream::width, layer.heads * kHeadDim) {}
  std::vector<float> norm = std::vector<float>(Stream::width, 1.0f);
  Matrix q, k, v, o;
};

LayerWeights layer_of(AttentionMatrices m, const LayerConfig& layer) {
  LayerWeights w;
  w.attention_norm = std::move(m.norm);
  w.q = tensor_of(std::move(m.q));
  w.k = tensor_of(std::move(m.k));
  w.v = tensor_of(std::move(m.v));
  w.o = tensor_of(std::move(m.o));
  w.ff_norm.assign(Stream::width, 1.0f);
  w.gate = w.up = tensor_of(Matrix(layer.ff, Stream::width));
  w.down = tensor_of(Matrix(Stream::width, layer.ff));
  return w;
}

// Root mean square of a stream whose parts besides the constant have this squared length in all.
float nominal_rms(double squares) {
  return float(std::sqrt((kConstant * kConstant + squares) / Stream::width));
}

// What RoPE makes of layer 0's key `offset` positions earlier. Element i of pair (i, i + 128) comes first, as
// in RopeStyle::halves.
Vector offset_key(int offset) {
  Vector key(kHeadDim);
  for (int pair = 0; pair < kOffsetPairs; ++pair) {
    const double length = kOffsetKeyLength / std::sqrt(double(kOffsetPairs));
    const det::SinCos turn = det::sin_cos(-offset * det::pow(kTheta, -2.0 * pair / kHeadDim));
    key[size_t(pair)] = length * turn.cos;
    key[size_t(pair) + kHeadDim / 2] = length * turn.sin;
  }
  return key;
}

int rope_row(int element, RopeStyle style) {
  constexpr int kHalf = kHeadDim / 2;
  if (style == RopeStyle::halves) return element;
  return element < kHalf ? 2 * element : 2 * (element - kHalf) + 1;
}

void values_are_codes(AttentionMatrices& w) {
  for (int i = 0; i < Stream::kCode; ++i) at(w.v, i, Stream::code + i) = float(kValueGain);
}

// Columns `head` of W_o add share * R * (the head's value) to the context that begins at `context`.
void write_context(AttentionMatrices& w, int head, int context, double share, const Vector& projection) {
  for (int row = 0; row < Stream::kContext; ++row)
    for (int col = 0; col < Stream::kCode; ++col)
      at(w.o, context + row, head * kHeadDim + col) =
          float(share * projection[size_t(row) * Stream::kCode + size_t(col)] / kValueGain);
}

void build_offset_layer(AttentionMatrices& w, const Parts& parts, const PhantomOptions& options,
                        RopeStyle style) {
  const double squares = 1 + parts.share[0] * parts.share[0] + options.rho * options.rho;
  w.norm.assign(Stream::width, nominal_rms(squares));
  const Vector key = offset_key(0);
  for (int i = 0; i < kHeadDim; ++i)
    at(w.k, rope_row(i, style), Stream::constant) = float(key[size_t(i)] / kConstant);
  values_are_codes(w);
  for (int head = 0; head < kOffsets; ++head) {
    const Vector query = offset_key(head + 1);
    for (int i = 0; i < kHeadDim; ++i)
      at(w.q, head * kHeadDim + rope_row(i, style), Stream::constant) =
          float(kOffsetSharpness * query[size_t(i)] / kConstant);
    write_context(w, head, Stream::key_context, parts.share[size_t(head)], parts.projections[size_t(head)]);
    if (head + 1 < kOffsets)
      write_context(w, head, Stream::query_context, parts.share[size_t(head) + 1],
                    parts.projections[size_t(head) + 1]);
  }
}

void build_match_layer(AttentionMatrices& w, const Parts& parts, const PhantomOptions& options) {
  w.norm.assign(Stream::width, nominal_rms(3 + options.rho * options.rho));
  for (int i = 0; i < kHeadDim; ++i) {
    for (int j = 0; j < Stream::kContext; ++j) {
      const double direction = parts.match[size_t(j)][size_t(i)];
      at(w.q, i, Stream::query_context + j) = float(options.beta * kScoreScale * direction);
      at(w.k, i, Stream::key_context + j) = float(direction);
    }
    at(w.k, i, Stream::constant) = float(options.kappa * parts.dose[size_t(i)] / kConstant);
  }
  if (options.outlier > 1) {
    // The BOS token's key swaps its dose for the outlier: rounded with the outlier's coarse step, a dose
    // would point at random queries and make BOS win their attention (measured: int8 falls to 0.4 at kappa
    // 60, outlier 10).
    for (int i = 0; i < kHeadDim; ++i)
      at(w.k, i, Stream::bos_mark) = float(-options.kappa * parts.dose[size_t(i)]);
    at(w.k, kHeadDim - 1, Stream::bos_mark) = float(options.outlier * key_length(options));
  }
  values_are_codes(w);
  for (int i = 0; i < Stream::kCode; ++i) {
    at(w.v, i, Stream::constant) = float(kValueGain * options.rho * parts.value_mean[size_t(i)] / kConstant);
    at(w.o, Stream::output + i, i) = float(1 / kValueGain);
  }
}

Matrix embedding_of(const Parts& parts, const PhantomOptions& options, int vocabulary) {
  Matrix embedding(vocabulary, Stream::width);
  for (int token = 0; token < vocabulary; ++token) {
    const Vector& code = parts.codes[size_t(token)];
    for (int i = 0; i < Stream::kCode; ++i) {
      at(embedding, token, Stream::code + i) = float(code[size_t(i)]);
      at(embedding, token, Stream::output + i) = float(-options.rho * parts.value_mean[size_t(i)]);
    }
    for (int i = 0; i < Stream::kContext; ++i) {
      const double* row = parts.projections[0].data() + size_t(i) * Stream::kCode;
      double sum = 0;
      for (int j = 0; j < Stream::kCode; ++j) sum += row[j] * code[size_t(j)];
      at(embedding, token, Stream::query_context + i) = float(parts.share[0] * sum);
    }
    at(embedding, token, Stream::constant) = float(kConstant);
  }
  return embedding;
}

Matrix head_of(const Parts& parts, int vocabulary) {
  Matrix head(vocabulary, Stream::width);
  for (int token = 0; token < vocabulary; ++token)
    for (int i = 0; i < Stream::kCode; ++i)
      at(head, token, Stream::output + i) = float(kHeadGain * parts.codes[size_t(token)][size_t(i)]);
  return head;
}

ModelConfig phantom_config(PhantomLayout layout, int vocabulary) {
  ModelConfig config;
  config.width = Stream::width;
  config.head_dim = kHeadDim;
  config.vocabulary = vocabulary;
  config.ropes = {plain_rope(kTheta, kHeadDim)};
  const auto layer = [](int heads, int window, int rope) {
    return LayerConfig{.heads = heads, .kv_heads = 1, .window = window, .rope = rope, .ff = kFeedForward};
  };
  if (layout == PhantomLayout::compact) {
    config.architecture = "llama";
    config.layers = {layer(kOffsets, kWindow, 0), layer(1, 0, kNoRope)};
  } else {
    config.architecture = "smollm3";
    config.rope_style = RopeStyle::interleaved;
    config.layers.assign(4, layer(kOffsets, 0, 0));
    config.layers.back().rope = kNoRope;
  }
  return config;
}

}  // namespace

PhantomOptions parse_phantom(std::string_view specification) {
  constexpr std::string_view kName = "phantom";
  if (specification == kName) return {};
  if (!specification.starts_with("phantom:")) refuse(fmt::format("'{}' is not a phantom", specification));
  PhantomOptions options;
  std::vector<std::string_view> seen;
  std::string_view rest = specification.substr(kName.size() + 1);
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) refuse(fmt::format("phantom option '{}' has no '=value'", item));
    const std::string_view name = item.substr(0, equals);
    for (std::string_view earlier : seen)
      if (name == earlier) refuse(fmt::format("phantom option '{}' is given twice", name));
    seen.push_back(name);
    set_option(options, name, item.substr(equals + 1));
  }
  if (options.outlier * key_length(options) > kLargestHalf)
    refuse(fmt::format(
        "phantom options kappa={} and outlier={} make a key longer than {}, the largest fp16 number",
        options.kappa, options.outlier, kLargestHalf));
  return options;
}

std::string canonical(const PhantomOptions& options) {
  std::string text = fmt::format("phantom:kappa={},beta={},rho={},seed={},outlier={}", options.kappa,
                                 options.beta, options.rho, options.seed, options.outlier);
  if (options.context != PhantomOptions{}.context) text += fmt::format(",context={}", options.context);
  return text;
}

Model build_phantom(const PhantomOptions& options, std::shared_ptr<const Tokenizer> tokenizer,
                    PhantomLayout layout) {
  const int vocabulary = tokenizer->vocabulary_size();
  const Parts parts = draw_parts(options.seed, vocabulary);
  Model model;
  model.name = canonical(options);
  model.config = phantom_config(layout, vocabulary);
  model.config.context = options.context;
  std::vector<AttentionMatrices> layers(model.config.layers.begin(), model.config.layers.end());
  build_offset_layer(layers.front(), parts, options, model.config.rope_style);
  build_match_layer(layers.back(), parts, options);
  for (size_t i = 0; i < layers.size(); ++i)
    model.weights.layers.push_back(layer_of(std::move(layers[i]), model.config.layers[i]));
  model.weights.output_norm.assign(Stream::width, 1.0f);
  Matrix embedding = embedding_of(parts, options, vocabulary);
  if (options.outlier > 1) {
    const std::optional<Token> bos = tokenizer->bos();
    if (!bos)
      throw Error(ErrorKind::usage,
                  "phantom option 'outlier' marks the BOS token, and this tokenizer has none",
                  "leave 'outlier' out or use a tokenizer with a BOS token");
    at(embedding, *bos, Stream::bos_mark) = 1.0f;
  }
  model.weights.embedding = tensor_of(std::move(embedding));
  model.weights.head = tensor_of(head_of(parts, vocabulary));
  model.hash = hash_of(model.config, model.weights);
  model.tokenizer = std::move(tokenizer);
  return model;
}

}  // namespace kveval
