// What a user gives to be read: text as an argument, from standard input or from a file; token ids.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/unique_fd.h"
#include "protocol/error.h"

namespace mk::client {

struct TextSource {
  std::string argument;  // the text itself, or "-" for standard input
  bool has_argument = false;
  std::string file;  // -f; "-" is standard input

  bool given() const { return has_argument || !file.empty(); }
};

// The text: of the file, of the argument, or of standard input when neither is given and it is no
// terminal. One newline at the end of a file or of standard input is not part of it. Errors: usage
// (no text, or two of them), kNotFound and its like for files, kBadRequest for more than a message
// carries.
protocol::Result<std::string> ReadText(const TextSource& source, const std::string& what);

// All of a file, or of standard input for "-". Errors: as OpenForReading, kBadRequest for more than
// `most` bytes.
protocol::Result<std::string> ReadWholeFile(const std::string& path, size_t most);

// A file that the user named. Errors: kNotFound, kPermissionDenied, kIoError; messages name it.
protocol::Result<UniqueFd> OpenForReading(const std::string& path);

// "1,2,3", "1 2 3", or "@FILE" ("@-": standard input) with such a list in it.
protocol::Result<std::vector<int32_t>> ReadIds(const std::string& text);

}  // namespace mk::client
