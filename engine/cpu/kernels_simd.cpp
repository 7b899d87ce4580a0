#include "engine/cpu/level_kernels.h"

#define KVEVAL_TEXT_OF(x) #x
#define KVEVAL_TEXT(x) KVEVAL_TEXT_OF(x)

namespace kveval::KVEVAL_LEVEL {

extern const cpu::Kernels kernels;
const cpu::Kernels kernels = {
    .name = KVEVAL_TEXT(KVEVAL_LEVEL),
    .gemm = gemm,
    .rms_norm = rms_norm,
    .rope_halves = rope_halves,
    .rope_interleaved = rope_interleaved,
    .add = add,
    .silu_multiply = silu_multiply,
    .gelu_multiply = gelu_multiply,
    .scale = scale,
    .exp_sum = exp_sum,
    .argmax = argmax,
    .attention = {.span = attend_span, .merge = merge_span, .finish = finish_row},
    .encode_row = kv::KVEVAL_LEVEL::encode_row,
};

}  // namespace kveval::KVEVAL_LEVEL
