#include "client/dump_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

Status CannotWrite(const std::string& path, int error) {
  return Fail(error == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kIoError,
              "cannot write " + path + ": " + std::strerror(error),
              "check the folder, its permissions and its free space");
}

}  // namespace

Result<DumpFile> DumpFile::Create(const std::string& path) {
  DumpFile file;
  file.path_ = path;
  struct stat info = {};
  const bool direct = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  if (!direct) file.temporary_ = path + ".part";
  const std::string& name = direct ? path : file.temporary_;
  const int flags = O_WRONLY | O_CLOEXEC | (direct ? 0 : O_CREAT | O_TRUNC);
  file.fd_.Reset(::open(name.c_str(), flags, 0666));
  if (!file.fd_) {
    file.temporary_.clear();
    return Fail(CannotWrite(path, errno).error());
  }
  return file;
}

DumpFile::~DumpFile() {
  if (fd_ && !temporary_.empty()) ::unlink(temporary_.c_str());
}

Status DumpFile::Append(const protocol::TensorChunk& piece) {
  const bool first = rows_ == 0 && offset_ == 0;
  if (first) row_bytes_ = piece.row_bytes;
  const bool same_row = offset_ == 0 ? (!last_position_ || piece.position == *last_position_ + 1)
                                     : piece.position == last_position_;
  if (piece.row_bytes != row_bytes_ || piece.offset != offset_ || !same_row ||
      piece.data.size() > row_bytes_ - offset_ || piece.data.empty()) {
    return Fail(ErrorCode::kInternal, "the daemon sent pieces of " + piece.kind +
                                          " that do not fit together, at position " +
                                          std::to_string(piece.position));
  }
  size_t written = 0;
  while (written < piece.data.size()) {
    const ssize_t wrote =
        ::write(fd_.get(), piece.data.data() + written, piece.data.size() - written);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return CannotWrite(path_, errno);
    }
    written += static_cast<size_t>(wrote);
  }
  last_position_ = piece.position;
  offset_ += piece.data.size();
  if (offset_ == row_bytes_) {
    ++rows_;
    offset_ = 0;
  }
  return {};
}

Status DumpFile::Commit() {
  if (offset_ != 0) {
    return Fail(ErrorCode::kInternal, "the last row of " + path_ + " is not whole");
  }
  if (temporary_.empty()) return {};
  if (::fsync(fd_.get()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return CannotWrite(path_, errno);
  }
  fd_.Reset();
  return {};
}

}  // namespace mk::client
