// A table as plain text: every column as wide as its widest cell, two spaces between them.

#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace mk::client {

class TextTable {
 public:
  enum class Align { kLeft, kRight };

  // One for each column.
  TextTable(std::initializer_list<Align> columns) : columns_(columns) {}

  // Cells are made printable; missing ones are empty, the last column takes no padding.
  void Add(std::vector<std::string> cells);
  // The rows, each with `indent` before it and a newline behind it.
  std::string Text(const std::string& indent = {}) const;

 private:
  const std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace mk::client
