#include "eval/text_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "protocol/utf8.h"

namespace mk::eval {
namespace {

using nlohmann::json;
using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

Status BadLine(const std::string& path, size_t line, std::string what, std::string hint = {}) {
  return Fail(ErrorCode::kBadRequest, path + ":" + std::to_string(line) + ": " + std::move(what),
              std::move(hint));
}

Status ReadDocument(const std::string& path, const Line& line, TextFile& file) {
  constexpr const char* kForm = "a line is {\"text\": \"...\"}, perhaps with an \"id\"";
  const json object = json::parse(line.text, nullptr, false);
  if (!object.is_object()) return BadLine(path, line.number, "not a JSON object", kForm);
  Document document;
  for (const auto& [key, value] : object.items()) {
    if (key != "id" && key != "text") {
      return BadLine(path, line.number, "unknown field \"" + key + "\"", kForm);
    }
    if (!value.is_string()) return BadLine(path, line.number, key + " is no string", kForm);
    (key == "id" ? document.id : document.text) = value.get<std::string>();
  }
  if (document.text.empty()) return BadLine(path, line.number, "there is no text", kForm);
  if (document.id.empty()) document.id = "line " + std::to_string(line.number);
  file.documents.push_back(std::move(document));
  return {};
}

// Where the paragraph that `from` lies in ends, its blank lines included.
size_t EndOfParagraph(std::string_view text, size_t from) {
  size_t at = text.find('\n', from);
  while (at != std::string_view::npos) {
    size_t next = text.find_first_not_of(" \t\r", at + 1);
    if (next == std::string_view::npos) return text.size();
    if (text[next] == '\n') {
      next = text.find_first_not_of(" \t\r\n", next);
      if (next == std::string_view::npos) return text.size();
      // The spaces before the first word belong to it.
      return text.rfind('\n', next) + 1;
    }
    at = text.find('\n', at + 1);
  }
  return text.size();
}

void CutIntoDocuments(std::string_view text, TextFile& file) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin;
    while (end < text.size() && end - begin < kDocumentBytes) end = EndOfParagraph(text, end);
    // What is left is too little for one of its own.
    if (text.size() - end < kDocumentBytes / 2) end = text.size();
    file.documents.push_back(
        {"byte " + std::to_string(begin), std::string(text.substr(begin, end - begin))});
    begin = end;
  }
}

}  // namespace

std::string NameOfFile(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

Result<std::vector<Line>> LinesOf(const std::string& path, std::string_view bytes) {
  std::vector<Line> lines;
  size_t number = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    std::string_view text = bytes.substr(at, end - at);
    ++number;
    at = end + 1;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (text.size() > kMaxLineBytes) {
      return Fail(BadLine(path, number, "longer than " + std::to_string(kMaxLineBytes) + " bytes",
                          "one object per line")
                      .error());
    }
    lines.push_back({number, text});
  }
  return lines;
}

Result<TextFile> ParseTextFile(const std::string& path, std::string_view bytes) {
  TextFile file;
  file.name = NameOfFile(path);
  if (protocol::FindInvalidUtf8(bytes) != std::string_view::npos) {
    return Fail(ErrorCode::kBadRequest, path + " is not UTF-8",
                "convert it, with iconv for example");
  }
  if (path.ends_with(".jsonl")) {
    auto lines = LinesOf(path, bytes);
    if (!lines) return Fail(std::move(lines.error()));
    for (const Line& line : *lines) {
      if (Status read = ReadDocument(path, line, file); !read) return Fail(read.error());
    }
  } else {
    CutIntoDocuments(bytes, file);
  }
  if (file.documents.empty()) {
    return Fail(ErrorCode::kBadRequest, path + " is empty", "give a file with some text");
  }
  for (const Document& document : file.documents) file.bytes += document.text.size();
  return file;
}

}  // namespace mk::eval
