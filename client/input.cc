#include "client/input.h"

#include <fcntl.h>
#include <sys/stat.h>
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
      return Fail(ErrorCode::kIoError, "cannot read " + name + ": " + std::strerror(errno),
                  "give another file, or the text as an argument");
    }
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > most) {
      return Fail(ErrorCode::kBadRequest,
                  name + " holds more than " + std::to_string(most) + " bytes",
                  "give a shorter text");
    }
  }
}

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

tl::unexpected<protocol::Error> NoId(std::string_view found) {
  return Fail(UsageError(
      "not a token id: \"" + std::string(found.substr(0, 20)) + "\"",
      "ids are whole numbers with commas or blanks between them: --ids 1,2,3 or --ids @FILE"));
}

// Ids with one comma, or blanks alone, between each two, in brackets or not.
Result<std::vector<int32_t>> ParseIds(std::string_view text) {
  text = Trim(text);
  if (text.starts_with('[') && text.ends_with(']')) {
    text = Trim(text.substr(1, text.size() - 2));
  }
  std::vector<int32_t> ids;
  while (!text.empty()) {
    int32_t id = 0;
    const char* const end = text.data() + text.size();
    const auto [next, error] = std::from_chars(text.data(), end, id);
    const auto size = static_cast<size_t>(next - text.data());
    const bool ends = next == end || *next == ',' || kBlanks.find(*next) != std::string_view::npos;
    if (error != std::errc() || id < 0 || !ends) return NoId(text);
    ids.push_back(id);
    const std::string_view rest = text.substr(size);
    text = Trim(rest);
    if (!text.starts_with(',')) continue;
    text = Trim(text.substr(1));
    if (text.empty()) return NoId(rest);
  }
  return ids;
}

}  // namespace

Result<std::string> ReadWholeFile(const std::string& path, size_t most) {
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input", most);
  auto fd = OpenForReading(path);
  if (!fd) return Fail(fd.error());
  return ReadAll(fd->get(), path, most);
}

Result<UniqueFd> OpenForReading(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (fd && ::fstat(fd.get(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return Fail(ErrorCode::kBadRequest, path + " is a folder", "name a file in it");
  }
  if (fd) return fd;
  const int error = errno;
  const ErrorCode code = error == ENOENT   ? ErrorCode::kNotFound
                         : error == EACCES ? ErrorCode::kPermissionDenied
                                           : ErrorCode::kIoError;
  return Fail(code, "cannot read " + path + ": " + std::strerror(error),
              "check the spelling and the permissions of the path");
}

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
  Result<std::string> text =
      ReadWholeFile(from_stdin ? "-" : source.file, protocol::kLimits.text_bytes);
  if (text && text->ends_with('\n')) text->pop_back();
  return text;
}

Result<std::vector<int32_t>> ReadIds(const std::string& argument) {
  std::string text = argument;
  if (argument.starts_with('@')) {
    constexpr size_t kBytesPerId = 12;
    Result<std::string> file =
        ReadWholeFile(argument.substr(1), protocol::kLimits.array_items * kBytesPerId);
    if (!file) return Fail(std::move(file.error()));
    text = std::move(*file);
  }
  auto ids = ParseIds(text);
  if (ids && ids->empty()) {
    return Fail(UsageError("there are no token ids", "--ids 1,2,3 or --ids @FILE"));
  }
  return ids;
}

}  // namespace mk::client
