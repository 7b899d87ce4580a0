// What a forward pass takes, counted: what speeds and estimates are made of. Follows Forward::run.
#pragma once

#include <cstddef>
#include <span>

#include "engine/kv/cache.h"
#include "engine/model/config.h"
#include "engine/profile.h"

namespace kveval::cpu {

// Multiply-adds x 2 of positions first .. first + tokens of one sequence, logits wanted behind the last
// `wanted` of them: every matrix product, and 4 * heads * head_dim for each key that a query sees. Behind the
// last layer's keys and values only the wanted positions are computed; wanted <= tokens. The same however the
// tokens are cut into chunks.
double forward_flops(const ModelConfig& config, size_t first, size_t tokens, size_t wanted);

// Bytes of codes and scales that the query at `position` reads, in all layers.
double cache_bytes_read(std::span<const kv::LayerShape> layers, const Profile& profile, size_t position);

}  // namespace kveval::cpu
