#include "engine/cpu/forward.h"

#include <algorithm>
#include <cstring>

namespace kveval::cpu {

namespace {

// Rows handed to a thread at a time by the cheap per-row steps: enough work to be worth waking a thread for.
constexpr int kRowBlock = 32;
// Logits are produced this many rows at a time, so that scoring many tokens of a 256K vocabulary stays small.
constexpr int kLogitRows = 16;

size_t padded(int rows) { return (size_t(rows) + kLanes - 1) / kLanes * kLanes; }

}  // namespace

PackedModel::PackedModel(const Model& m, ThreadPool& pool) : model(&m) {
  const auto take = [&m, &pool](const Tensor& tensor) {
    PackedMatrix packed = pack(tensor, pool);
    m.files.release(tensor);
    return packed;
  };
  for (const LayerWeights& w : m.weights.layers) {
    layers.push_back({take(w.q), take(w.k), take(w.v), take(w.o), take(w.gate), take(w.up), take(w.down)});
  }
  head = take(m.weights.head);
  m.files.check_intact();
}

double PackedModel::bytes() const {
  double sum = double(head.byte_size());
  for (const PackedLayer& w : layers)
    for (const PackedMatrix* matrix : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down})
      sum += double(matrix->byte_size());
  return sum;
}

std::vector<kv::LayerShape> layer_shapes(const ModelConfig& config) {
  std::vector<kv::LayerShape> shapes;
  for (const LayerConfig& layer : config.layers) {
    shapes.push_back({layer.kv_heads, config.head_dim, layer.window});
  }
  return shapes;
}

Forward::Forward(const PackedModel& model, const Kernels& kernels, ThreadPool& pool)
    : packed_(model),
      config_(model.model->config),
      kernels_(kernels),
      pool_(pool),
      attention_(kernels, pool) {
  for (const Rope& rope : config_.ropes) angles_.push_back({make_rope_table(rope, config_.context), {}, {}});
}

void Forward::run(kv::Cache& cache, std::span<const Feed> feeds, const OnLogits& on_logits) {
  Rows rows = all_rows(feeds);
  for (const Feed& feed : feeds) cache.extend(*feed.sequence, feed.tokens.size());

  embed(feeds);
  rope_angles(rows);
  const int layers = int(config_.layers.size());
  for (int layer = 0; layer < layers; layer++) {
    const LayerConfig& shape = config_.layers[size_t(layer)];
    const LayerWeights& vectors = packed_.model->weights.layers[size_t(layer)];
    const PackedLayer& w = packed_.layers[size_t(layer)];

    const bool last = layer == layers - 1;
    const Linear q{w.q, q_, vectors.q_bias}, k{w.k, k_, vectors.k_bias}, v{w.v, v_, vectors.v_bias};

    normalize(vectors.attention_norm, rows.count);
    if (last)
      multiply({k, v}, h_.data(), rows.count, width());
    else
      multiply({q, k, v}, h_.data(), rows.count, width());
    normalize_heads(vectors.k_norm, k_.data(), shape.kv_heads, padded(w.k.rows), rows.count);
    rotate(shape, k_.data(), shape.kv_heads, padded(w.k.rows), rows.count);
    write_cache(cache, feeds, layer);

    if (last) {  // behind its keys and values nothing reads a prompt token any more
      rows = keep_wanted(feeds, rows);
      if (rows.count == 0) break;
      multiply({q}, h_.data(), rows.count, width());
    }
    normalize_heads(vectors.q_norm, q_.data(), shape.heads, padded(w.q.rows), rows.count);
    rotate(shape, q_.data(), shape.heads, padded(w.q.rows), rows.count);
    attend(cache, layer, rows);
    add_product(w.o, vectors.post_attention_norm, attended_.data(), rows.count, size_t(w.o.cols));

    normalize(vectors.ff_norm, rows.count);
    feed_forward(w, rows.count);
    add_product(w.down, vectors.post_ff_norm, gate_.data(), rows.count, padded(w.gate.rows));
  }
  for (const Feed& feed : feeds) cache.release_behind_window(*feed.sequence, feed.sequence->length());
  if (rows.count > 0) emit_logits(feeds, rows.count, on_logits);
}

Forward::Rows Forward::all_rows(std::span<const Feed> feeds) const {
  Rows rows;
  for (const Feed& feed : feeds) {
    const size_t first = feed.sequence->length();
    rows.runs.push_back({feed.sequence, rows.count, int(feed.tokens.size()), first});
    rows.count += int(feed.tokens.size());
  }
  return rows;
}

void Forward::embed(std::span<const Feed> feeds) {
  const Tensor& embedding = packed_.model->weights.embedding;
  size_t rows = 0;
  for (const Feed& feed : feeds) rows += feed.tokens.size();
  x_.reserve(rows * width());
  float* x = x_.data();
  for (const Feed& feed : feeds) {
    for (const Token token : feed.tokens) {
      dequantize_row(embedding, token, x);
      if (config_.embedding_scale != 1) kernels_.scale(x, config_.embedding_scale, width());
      x += width();
    }
  }
}

// Positions are the same in every layer, so the angles of a batch are computed once.
void Forward::rope_angles(const Rows& rows) {
  const size_t half = size_t(config_.head_dim) / 2;
  for (Angles& angles : angles_) {
    angles.cos.reserve(size_t(rows.count) * half);
    angles.sin.reserve(size_t(rows.count) * half);
    for (const Rows::Run& run : rows.runs) {
      for_rows(run.count, [&](int i) {
        const size_t at = size_t(run.row + i) * half;
        rope_rows(angles.table, run.position + size_t(i), 1, angles.cos.data() + at, angles.sin.data() + at);
      });
    }
  }
}

void Forward::normalize(const std::vector<float>& weight, int rows) {
  h_.reserve(size_t(rows) * width());
  for_rows(rows, [&](int i) {
    kernels_.rms_norm(x_.data() + size_t(i) * width(), weight.data(), config_.width, config_.norm_epsilon,
                      h_.data() + size_t(i) * width());
  });
}

void Forward::normalize_heads(const std::vector<float>& weight, float* x, int heads, size_t stride,
                              int rows) const {
  if (weight.empty()) return;
  for_rows(rows, [&](int i) {
    for (int head = 0; head < heads; head++) {
      float* const values = x + size_t(i) * stride + size_t(head * config_.head_dim);
      kernels_.rms_norm(values, weight.data(), config_.head_dim, config_.norm_epsilon, values);
    }
  });
}

void Forward::rotate(const LayerConfig& layer, float* x, int heads, size_t stride, int rows) const {
  if (layer.rope == kNoRope) return;
  const Angles& angles = angles_[size_t(layer.rope)];
  const size_t half = size_t(config_.head_dim) / 2;
  const auto rope =
      config_.rope_style == RopeStyle::halves ? kernels_.rope_halves : kernels_.rope_interleaved;
  for_rows(rows, [&](int i) {
    for (int head = 0; head < heads; head++) {
      rope(x + size_t(i) * stride + size_t(head * config_.head_dim), angles.cos.data() + size_t(i) * half,
           angles.sin.data() + size_t(i) * half, config_.head_dim);
    }
  });
}

// Keys and values of the whole batch go through the codec before any query reads them, even its own.
void Forward::write_cache(kv::Cache& cache, std::span<const Feed> feeds, int layer) {
  const LayerConfig& shape = config_.layers[size_t(layer)];
  const size_t stride = padded(shape.kv_heads * config_.head_dim);
  pool_.run(shape.kv_heads, [&](int head, int) {
    size_t row = 0;
    for (const Feed& feed : feeds) {
      const size_t at = row * stride + size_t(head * config_.head_dim);
      cache.write(*feed.sequence, layer, head, feed.sequence->length() - feed.tokens.size(),
                  feed.tokens.size(), k_.data() + at, v_.data() + at, stride);
      row += feed.tokens.size();
    }
  });
}

Forward::Rows Forward::keep_wanted(std::span<const Feed> feeds, const Rows& rows) {
  const size_t half = size_t(config_.head_dim) / 2;
  Rows kept;
  for (size_t f = 0; f < feeds.size(); f++) {
    const Rows::Run& run = rows.runs[f];
    const int skipped = int(std::min(feeds[f].first_wanted, feeds[f].tokens.size()));
    if (skipped == run.count) continue;
    kept.runs.push_back({run.sequence, kept.count, run.count - skipped, run.position + size_t(skipped)});
    const auto move = [&](Buffer& buffer, size_t columns) {
      std::memmove(buffer.data() + size_t(kept.count) * columns,
                   buffer.data() + size_t(run.row + skipped) * columns,
                   size_t(run.count - skipped) * columns * sizeof(float));
    };
    move(x_, width());
    move(h_, width());
    for (Angles& angles : angles_) {
      move(angles.cos, half);
      move(angles.sin, half);
    }
    kept.count += run.count - skipped;
  }
  return kept;
}

void Forward::attend(kv::Cache& cache, int layer, const Rows& rows) {
  const LayerConfig& shape = config_.layers[size_t(layer)];
  const size_t columns = size_t(shape.heads) * size_t(config_.head_dim);
  attended_.reserve(size_t(rows.count) * columns);
  std::vector<AttentionSegment> segments;
  for (const Rows::Run& run : rows.runs) {
    const size_t at = size_t(run.row) * columns;
    segments.push_back(
        {run.sequence->pages(layer).data(), run.position, run.count, q_.data() + at, attended_.data() + at});
  }
  attention_.run({shape.heads, shape.window, &cache.layout(layer), config_.score_scale}, segments);
}

// gate = act(gate h) * (up h), what W_down reads.
void Forward::feed_forward(const PackedLayer& w, int rows) {
  const size_t ff = padded(w.gate.rows);
  multiply({{w.gate, gate_}, {w.up, up_}}, h_.data(), rows, width());
  const auto activate =
      config_.activation == Activation::silu ? kernels_.silu_multiply : kernels_.gelu_multiply;
  for_rows(rows, [&](int i) {
    activate(gate_.data() + size_t(i) * ff, up_.data() + size_t(i) * ff, size_t(w.gate.rows));
  });
}

void Forward::emit_logits(std::span<const Feed> feeds, int rows, const OnLogits& on_logits) {
  normalize(packed_.model->weights.output_norm, rows);
  const size_t vocabulary = size_t(config_.vocabulary);
  size_t feed = 0, index = feeds[0].first_wanted;
  for (int first = 0; first < rows; first += kLogitRows) {
    const int count = std::min(kLogitRows, rows - first);
    multiply({{packed_.head, logits_}}, h_.data() + size_t(first) * width(), count, width());
    for (int i = 0; i < count; i++) {
      while (index >= feeds[feed].tokens.size()) index = feeds[++feed].first_wanted;
      on_logits(feed, index++, {logits_.data() + size_t(i) * padded(packed_.head.rows), vocabulary});
    }
  }
}

void Forward::multiply(std::initializer_list<Linear> all, const float* in, int rows, size_t in_stride) {
  std::vector<Product> products;
  for (const Linear& one : all) {
    const size_t stride = padded(one.weights.rows);
    products.push_back({one.weights, one.out.reserve(size_t(rows) * stride), stride});
  }
  matmul(kernels_, pool_, products, in, rows, in_stride);
  for (const Linear& one : all) {
    if (one.bias.empty()) continue;
    for_rows(rows, [&](int i) {
      kernels_.add(one.out.data() + size_t(i) * padded(one.weights.rows), one.bias.data(), one.bias.size());
    });
  }
}

// x += in W^T, normalized first where the architecture says so.
void Forward::add_product(const PackedMatrix& w, const std::vector<float>& post_norm, const float* in,
                          int rows, size_t in_stride) {
  multiply({{w, projected_}}, in, rows, in_stride);
  for_rows(rows, [&](int i) {
    float* const product = projected_.data() + size_t(i) * padded(w.rows);
    if (!post_norm.empty())
      kernels_.rms_norm(product, post_norm.data(), config_.width, config_.norm_epsilon, product);
    kernels_.add(x_.data() + size_t(i) * width(), product, width());
  });
}

template <class F>
void Forward::for_rows(int rows, const F& body) const {
  pool_.run((rows + kRowBlock - 1) / kRowBlock, [&](int block, int) {
    for (int i = block * kRowBlock; i < std::min(rows, (block + 1) * kRowBlock); i++) body(i);
  });
}

}  // namespace kveval::cpu
