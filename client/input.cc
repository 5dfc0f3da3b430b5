#include "client/input.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "client/report.h"
#include "client/unique_fd.h"
#include "protocol/limits.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;

Result<std::string> ReadAll(int fd, const std::string& name, size_t most) {
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got < 0) {
      if (errno == EINTR) continue;
      return Fail(ErrorCode::kIoError, "cannot read " + name + ": " + std::strerror(errno));
    }
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > most) {
      return Fail(ErrorCode::kBadRequest,
                  name + " holds more than " + std::to_string(most) + " bytes",
                  "give a shorter text");
    }
  }
}

Result<std::string> ReadFile(const std::string& path, size_t most) {
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input", most);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    const int error = errno;
    const ErrorCode code = error == ENOENT   ? ErrorCode::kNotFound
                           : error == EACCES ? ErrorCode::kPermissionDenied
                                             : ErrorCode::kIoError;
    return Fail(code, "cannot read " + path + ": " + std::strerror(error));
  }
  return ReadAll(fd.get(), path, most);
}

bool IsSeparator(char c) {
  return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '[' || c == ']';
}

}  // namespace

Result<std::string> ReadText(const TextSource& source, const std::string& what) {
  if (source.has_argument && !source.file.empty()) {
    return Fail(UsageError("the " + what + " is given twice, as an argument and with -f",
                           "leave out one of them"));
  }
  const bool from_stdin = source.file.empty() && (!source.has_argument || source.argument == "-");
  if (!from_stdin && source.file.empty()) return source.argument;
  if (from_stdin && !source.has_argument && ::isatty(STDIN_FILENO) == 1) {
    return Fail(UsageError("there is no " + what,
                           "give it as an argument, with -f FILE, or through a pipe"));
  }
  Result<std::string> text = ReadFile(from_stdin ? "-" : source.file, protocol::kLimits.text_bytes);
  if (text && text->ends_with('\n')) text->pop_back();
  return text;
}

Result<std::vector<int32_t>> ReadIds(const std::string& argument) {
  std::string text = argument;
  if (argument.starts_with('@')) {
    constexpr size_t kBytesPerId = 12;
    Result<std::string> file =
        ReadFile(argument.substr(1), protocol::kLimits.array_items * kBytesPerId);
    if (!file) return Fail(std::move(file.error()));
    text = std::move(*file);
  }
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at != end && IsSeparator(*at)) ++at;
    if (at == end) break;
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || (next != end && !IsSeparator(*next))) {
      return Fail(UsageError(
          "not a token id: \"" + std::string(at, std::min<size_t>(20, end - at)) + "\"",
          "ids are whole numbers with commas or blanks between them: --ids 1,2,3 or --ids @FILE"));
    }
    ids.push_back(id);
    at = next;
  }
  if (ids.empty()) return Fail(UsageError("there are no token ids", "--ids 1,2,3 or --ids @FILE"));
  return ids;
}

}  // namespace mk::client
