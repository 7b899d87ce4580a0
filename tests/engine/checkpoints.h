// The catalogued checkpoints, for tests that need a real one.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "engine/model/catalog.h"

namespace kveval {

// Null when the checkpoint is not here: the test then skips, saying how to get it.
inline std::shared_ptr<const Model> checkpoint(const std::string& name) {
  return std::filesystem::exists(catalog_path(name)) ? load_model(name) : nullptr;
}

// Declares `model`, a name: it cannot stand in parentheses.
#define KVEVAL_NEED_CHECKPOINT(model, name)                                     \
  const auto model = checkpoint(name); /* NOLINT(bugprone-macro-parentheses) */ \
  if (!(model)) GTEST_SKIP() << "the checkpoint is not here: scripts/fetch-model " << (name)

}  // namespace kveval
