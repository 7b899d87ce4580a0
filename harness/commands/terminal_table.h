// A plain table for a terminal: columns as wide as their widest cell, two spaces apart.
#pragma once

#include <string>
#include <vector>

namespace kveval {

enum class Align { left, right };

class TextTable {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit TextTable(std::vector<Column> columns);
  void add(std::vector<std::string> cells);  // one per column; already safe to print
  std::string text() const;                  // title line first, lines end without spaces

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kveval
