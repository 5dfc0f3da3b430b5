// Texts to measure likelihood on, as documents: the units that intervals are made of.
//
// A file whose name ends in .jsonl has a document per line, {"id": "...", "text": "..."} with the
// id optional. Any other file is one text, cut at blank lines into documents of at least
// kDocumentBytes, whatever the vocabulary of the model.
//
// Files are checked before they are believed. Thread-safe.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

namespace mk::eval {

inline constexpr size_t kMaxFileBytes = size_t{256} << 20;
inline constexpr size_t kMaxLineBytes = size_t{16} << 20;
inline constexpr size_t kDocumentBytes = 2048;

struct Document {
  std::string id;
  std::string text;  // UTF-8, not empty
};

struct TextFile {
  std::string name;  // of the file, without folder and ending
  std::vector<Document> documents;
  uint64_t bytes = 0;  // of all documents
};

// `path` names the file in errors and tells its form. Errors: kBadRequest, "PATH:LINE: ..." where a
// line is at fault.
protocol::Result<TextFile> ParseTextFile(const std::string& path, std::string_view bytes);

// "texts/fables.jsonl" is "fables".
std::string NameOfFile(const std::string& path);

// Lines of a file with their numbers, from 1, without line ends; empty ones are left out. Errors:
// a line that is too long.
struct Line {
  size_t number = 0;
  std::string_view text;
};
protocol::Result<std::vector<Line>> LinesOf(const std::string& path, std::string_view bytes);

}  // namespace mk::eval
