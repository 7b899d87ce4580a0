// The words of generated text. Key words name needles; filler words and templates make the hay around them.
//
// All words are lower case ASCII, and the sets are disjoint: no key word is ever a filler or frame word, no
// adjective is a noun. So a key word in a generated haystack can only come from its needle.
// scripts/train-phantom-tokenizer reads every quoted word of wordbank.cpp: each is one piece of the phantom's
// tokenizer, leading space included.
#pragma once

#include <span>
#include <string_view>

namespace kveval {

std::span<const std::string_view> key_adjectives();  // at least 256
std::span<const std::string_view> key_nouns();       // at least 256

// Sentences of about twelve words with slots to fill: "The {quality} {person} {did} the {thing} near the
// {place}."
std::span<const std::string_view> filler_templates();

// The words a slot can take; empty for a name no template uses.
std::span<const std::string_view> filler_words(std::string_view slot);

}  // namespace kveval
