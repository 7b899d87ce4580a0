// The forward pass: tokens of one or more sequences in, logits of the positions asked for out.
//
// Arithmetic is float32 throughout, or multiplies bfloat16 operands (compute.h); the only thing that differs
// between two profiles is what the cache gives back. A row's result depends on its own sequence alone, never
// on which rows share the batch.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "engine/cpu/aligned.h"
#include "engine/cpu/attention.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cpu/thread_pool.h"
#include "engine/kv/cache.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"

namespace kveval::cpu {

struct PackedLayer {
  PackedMatrix q, k, v, o, gate, up, down;
};

// A model's matrices in the layout of the kernels; the pages of a checkpoint's file are dropped as soon as
// they are repacked. Norms, biases and the embedding, of which a prompt needs few rows, stay in the model.
// Throws Error{bad_file} when the file lost bytes meanwhile.
struct PackedModel {
  PackedModel(const Model& model, ThreadPool& pool);
  double bytes() const;  // of all matrices: what a pass over one token reads of them
  const Model* model;
  std::vector<PackedLayer> layers;
  PackedMatrix head;
};

std::vector<kv::LayerShape> layer_shapes(const ModelConfig& config);

// Consecutive tokens of one sequence.
struct Feed {
  kv::Sequence* sequence = nullptr;
  std::span<const Token> tokens;
  size_t first_wanted = 0;  // logits are wanted behind tokens[first_wanted ..]; tokens.size(): none
};

class Forward {
 public:
  Forward(const PackedModel& model, const Kernels& kernels, ThreadPool& pool);

  // `logits` are those that predict the token after feeds[feed].tokens[index]; valid during the call, which
  // comes in order of feed and index.
  using OnLogits = std::function<void(size_t feed, size_t index, std::span<const float> logits)>;

  // Appends every feed's tokens to its sequence in `cache`. Sequences are distinct.
  void run(kv::Cache& cache, std::span<const Feed> feeds, const OnLogits& on_logits);

 private:
  // The rows of a batch: one per token, feeds one after another.
  struct Rows {
    struct Run {  // rows [row, row + count) are consecutive positions of a sequence
      const kv::Sequence* sequence;
      int row, count;
      size_t position;
    };
    std::vector<Run> runs;
    int count = 0;
  };

  Rows all_rows(std::span<const Feed> feeds) const;
  Rows keep_wanted(std::span<const Feed> feeds, const Rows& rows);  // compacts x, h and the angles
  void embed(std::span<const Feed> feeds);
  void rope_angles(const Rows& rows);
  void normalize(const std::vector<float>& weight, int rows);  // h = rms_norm(x)
  void normalize_heads(const std::vector<float>& weight, float* x, int heads, size_t stride, int rows) const;
  void rotate(const LayerConfig& layer, float* x, int heads, size_t stride, int rows) const;
  void write_cache(kv::Cache& cache, std::span<const Feed> feeds, int layer);
  void attend(kv::Cache& cache, int layer, const Rows& rows);
  void feed_forward(const PackedLayer& w, int rows);
  void emit_logits(std::span<const Feed> feeds, int rows, const OnLogits& on_logits);
  // out = in W^T + bias, for all of them at once; rows of `out` are padded(weights.rows) floats apart.
  struct Linear {
    const PackedMatrix& weights;
    Buffer& out;
    std::span<const float> bias{};  // empty: none
  };
  void multiply(std::initializer_list<Linear> all, const float* in, int rows, size_t in_stride);
  void add_product(const PackedMatrix& w, const std::vector<float>& post_norm, const float* in, int rows,
                   size_t in_stride);
  template <class F>
  void for_rows(int rows, const F& body) const;
  size_t width() const { return size_t(config_.width); }

  const PackedModel& packed_;
  const ModelConfig& config_;
  struct Angles {  // of a batch's positions, [rows][head_dim / 2]; one for each of config.ropes
    RopeTable table;
    Buffer cos, sin;
  };
  std::vector<Angles> angles_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  Attention attention_;

  // Activations, grown to the largest batch seen. x is the residual stream, h its normalized copy.
  Buffer x_, h_, q_, k_, v_, attended_, projected_, gate_, up_, logits_;
};

}  // namespace kveval::cpu
