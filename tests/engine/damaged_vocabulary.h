// Vocabularies with one thing wrong, and what must be said of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "engine/error.h"
#include "engine/text/vocabulary.h"

namespace kveval {

struct Damage {
  const char* name;
  std::function<void(Vocabulary&)> change;
  const char* message;
};
inline void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

// No tokenizer is made of the damaged `vocabulary`.
inline void expect_refused(Vocabulary vocabulary, const Damage& damage) {
  damage.change(vocabulary);
  try {
    make_tokenizer(vocabulary);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_THAT(error.what(), testing::HasSubstr(damage.message));
  }
}

}  // namespace kveval
