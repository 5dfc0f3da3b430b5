#include "client/input_history.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/atomic_write.h"
#include "protocol/utf8.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

// Of a longer file only the end is read.
constexpr off_t kMostBytes = off_t{4} << 20;

tl::unexpected<protocol::Error> Unusable(const std::string& path, const std::string& why) {
  return Fail(ErrorCode::kIoError, "the history " + path + " " + why,
              "remove it, or chat with --no-history");
}

std::string Escaped(std::string_view entry) {
  std::string line;
  for (const char c : entry) {
    if (c == '\\') {
      line += "\\\\";
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line.push_back(c);
    }
  }
  return line + "\n";
}

std::string Unescaped(std::string_view line) {
  std::string entry;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      entry.push_back(line[i]);
    } else {
      entry.push_back(line[++i] == 'n' ? '\n' : line[i]);
    }
  }
  return entry;
}

// The end of a file, from the beginning of a line.
Result<std::string> ReadEnd(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return Unusable(path, std::strerror(errno));
  const off_t begin = std::max<off_t>(0, info.st_size - kMostBytes);
  std::string text(static_cast<size_t>(info.st_size - begin), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got =
        ::pread(fd, text.data() + size, text.size() - size, begin + static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unusable(path, std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  if (begin > 0) text.erase(0, text.find('\n') + 1);
  return text;
}

std::vector<std::string> EntriesOf(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool sound = protocol::FindInvalidUtf8(line) == std::string_view::npos &&
                       line.find('\0') == std::string_view::npos;
    if (!line.empty() && sound) entries.push_back(Unescaped(line));
  }
  return entries;
}

Status WriteLine(int fd, const std::string& line, const std::string& path) {
  ssize_t wrote = 0;
  do {
    wrote = ::write(fd, line.data(), line.size());
  } while (wrote < 0 && errno == EINTR);
  if (wrote == static_cast<ssize_t>(line.size())) return {};
  const int error = wrote < 0 ? errno : ENOSPC;
  return Fail(ErrorCode::kIoError,
              "the history " + path + " cannot be written: " + std::strerror(error),
              "free some space, or chat with --no-history");
}

}  // namespace

Result<InputHistory> InputHistory::Open(const std::string& path) {
  InputHistory history;
  history.path_ = path;
  if (Status read = history.Read(); !read) return Fail(read.error());
  return history;
}

// The file that stands there once its lock is held: another chat may be replacing it.
Result<UniqueFd> InputHistory::OpenLocked() const {
  while (true) {
    const int flags = O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    UniqueFd fd(::open(path_.c_str(), flags, 0600));
    if (!fd) {
      if (errno == ELOOP) return Unusable(path_, "is a symbolic link");
      return Unusable(path_, std::string("cannot be opened: ") + std::strerror(errno));
    }
    struct stat ours = {};
    if (::fstat(fd.get(), &ours) != 0) return Unusable(path_, std::strerror(errno));
    if (!S_ISREG(ours.st_mode)) return Unusable(path_, "is not a regular file");
    if (ours.st_uid != ::geteuid()) return Unusable(path_, "belongs to another user");
    if ((ours.st_mode & 077) != 0) ::fchmod(fd.get(), 0600);
    while (::flock(fd.get(), LOCK_EX) != 0) {
      if (errno != EINTR) return Unusable(path_, "cannot be locked");
    }
    struct stat there = {};
    const bool same = ::lstat(path_.c_str(), &there) == 0 && there.st_ino == ours.st_ino &&
                      there.st_dev == ours.st_dev;
    if (same) return fd;
  }
}

Status InputHistory::Read() {
  Result<UniqueFd> fd = OpenLocked();
  if (!fd) return Fail(fd.error());
  Result<std::string> text = ReadEnd(fd->get(), path_);
  if (!text) return Fail(text.error());
  entries_ = EntriesOf(*text);
  const bool long_file = entries_.size() > 2 * kEntries;
  if (entries_.size() > kEntries) {
    entries_.erase(entries_.begin(), entries_.end() - static_cast<ptrdiff_t>(kEntries));
  }
  return long_file ? CutDown() : Status();
}

Status InputHistory::CutDown() const {
  std::string text;
  for (const std::string& entry : entries_) text += Escaped(entry);
  return WriteFileAtomically(path_, text);
}

Status InputHistory::Add(const std::string& entry) {
  if (!entries_.empty() && entries_.back() == entry) return {};
  entries_.push_back(entry);
  if (path_.empty()) return {};
  Result<UniqueFd> fd = OpenLocked();
  if (!fd) return Fail(fd.error());
  return WriteLine(fd->get(), Escaped(entry), path_);
}

}  // namespace mk::client
