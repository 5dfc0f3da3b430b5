// Reading files: open regular files only, read exactly what was asked for, or fail.
//
// Every error names the path. Functions are thread-safe; a descriptor may be read by many threads
// at once because reads carry their offset (pread).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/base/unique_fd.h"

namespace mk {

// What tells one state of a file from another.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;     // bytes
  int64_t mtime_ns = 0;  // nanoseconds since 1970
  bool operator==(const FileIdentity&) const = default;
};

struct OpenedFile {
  UniqueFd fd;
  FileIdentity identity;
};

// Opens a regular file for reading. Errors: kNotFound, kPermissionDenied, kInvalidArgument (a
// directory, pipe or device), kIo.
Result<OpenedFile> OpenForReading(const std::string& path);

// State of an open file now.
Result<FileIdentity> IdentityOf(int fd, const std::string& path);

// Fills `out` from byte `offset` on. Errors: kCorrupt when the file ends early, kIo.
Status ReadAt(int fd, uint64_t offset, std::span<std::byte> out, const std::string& path);

// Asks the system to bring a range into the page cache while the caller does something else.
void ReadAhead(int fd, uint64_t offset, uint64_t bytes);

// Writes all of `bytes` at byte `offset`. Errors: kIo (a full disk is named as such).
Status WriteAt(int fd, uint64_t offset, std::span<const std::byte> bytes, const std::string& path);

// Reserves disk space for a file of so many bytes and sets its length. Errors: kIo, with the disk
// named as full when it is.
Status ReserveSpace(int fd, uint64_t bytes, const std::string& path);

// Whole content of a regular file of at most `max_bytes`. Errors as OpenForReading, and
// kInvalidArgument when the file is larger.
Result<std::string> ReadWholeFile(const std::string& path, uint64_t max_bytes);

// The path without links and dots; the path itself when that cannot be found out.
std::string CanonicalPath(const std::string& path);

// An Error for a failed system call: "cannot <what> <path>: <reason of error_number>".
Error SystemError(int error_number, const std::string& what, const std::string& path);

}  // namespace mk
