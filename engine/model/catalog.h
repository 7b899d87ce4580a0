// From a model's name, as the user writes it, to the model.
#pragma once

#include <memory>
#include <string_view>

#include "engine/model/weights.h"

namespace kveval {

// "phantom" or "phantom:kappa=80,..." (engine/model/phantom.h): computed, with the embedded tokenizer.
// Throws Error{usage} naming the models this build knows.
std::shared_ptr<const Model> load_model(std::string_view specification);

}  // namespace kveval
