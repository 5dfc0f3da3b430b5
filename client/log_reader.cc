#include "client/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "protocol/log_path.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;

// Longer lines are cut into pieces of this size.
constexpr size_t kMaxLineBytes = size_t{1} << 20;

}  // namespace

// Nothing when there is no such file.
protocol::Result<LogReader::Open> LogReader::OpenFile(const std::string& path) const {
  Open open{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), 0};
  struct stat info = {};
  if (open.fd && ::fstat(open.fd.get(), &info) == 0 && S_ISREG(info.st_mode)) {
    open.inode = info.st_ino;
    return open;
  }
  const int error = errno;
  if (open.fd) {
    return protocol::Fail(ErrorCode::kIoError, path + " is not a file", "remove it");
  }
  if (error == ENOENT || error == ENOTDIR) return Open{};
  return protocol::Fail(error == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kIoError,
                        "cannot read the log " + path + ": " + std::strerror(error),
                        "it and its folder must be yours");
}

// From the newest back to the one that is being read: a rotation in between only moves files that
// are open already, which shows by their inodes.
protocol::Status LogReader::OpenLaterFiles() {
  std::deque<Open> later;
  for (size_t number = 0; number <= protocol::kKeptLogs; ++number) {
    auto open = OpenFile(protocol::RotatedLog(file_, number));
    if (!open) return protocol::Fail(std::move(open.error()));
    if (!open->fd) continue;
    if (!files_.empty() && open->inode == files_.back().inode) break;
    const bool twice = std::any_of(later.begin(), later.end(),
                                   [&](const Open& one) { return one.inode == open->inode; });
    if (!twice) later.push_front(std::move(*open));
  }
  for (Open& open : later) files_.push_back(std::move(open));
  found_ = found_ || !files_.empty();
  return {};
}

void LogReader::TakeBytes(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t size = newline == std::string_view::npos ? bytes.size() : newline;
    partial_ += bytes.substr(0, size);
    const bool ends = newline != std::string_view::npos;
    bytes.remove_prefix(size + (ends ? 1 : 0));
    if (!ends && partial_.size() < kMaxLineBytes) return;
    on_line(partial_);
    partial_.clear();
  }
}

// To the end of the first of the files.
protocol::Status LogReader::Drain(const OnLine& on_line) {
  const int fd = files_.front().fd.get();
  struct stat info = {};
  // Somebody emptied it.
  if (::fstat(fd, &info) == 0 && info.st_size < offset_) offset_ = 0;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), offset_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return protocol::Fail(ErrorCode::kIoError,
                            "cannot read the log " + file_ + ": " + std::strerror(errno));
    }
    if (got == 0) return {};
    offset_ += got;
    TakeBytes({buffer.data(), static_cast<size_t>(got)}, on_line);
  }
}

protocol::Status LogReader::Read(const OnLine& on_line) {
  // What was written to the file before it was rotated must be read after that was seen.
  if (auto opened = OpenLaterFiles(); !opened) return opened;
  while (!files_.empty()) {
    if (auto drained = Drain(on_line); !drained) return drained;
    if (files_.size() == 1) return {};
    Finish(on_line);  // a file that was rotated gets no more
    files_.pop_front();
    offset_ = 0;
  }
  return {};
}

void LogReader::Finish(const OnLine& on_line) {
  if (partial_.empty()) return;
  on_line(partial_);
  partial_.clear();
}

}  // namespace mk::client
