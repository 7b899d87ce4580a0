// What a Jinja template writes literally.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kveval {

// A string in a tag, or text outside of tags.
struct JinjaLiteral {
  std::string text;         // escapes resolved
  std::string_view before;  // code from the tag's beginning or the string before it
  std::string_view after;   // code up to the next string or the tag's end, braces and percent signs left out
};

// In order. A template that is malformed gives what is found until there.
std::vector<JinjaLiteral> jinja_literals(std::string_view jinja);

}  // namespace kveval
