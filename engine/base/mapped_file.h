// MappedFile: a regular file mapped read-only into memory.
//
// For files that nobody shortens while they are mapped: touching a page beyond a shrunken end
// raises SIGBUS. Model files are read with ReadAt instead.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/result.h"

namespace mk {

class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        identity_(other.identity_) {}
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Errors as OpenForReading. An empty file gives an empty span.
  static Result<MappedFile> Open(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const FileIdentity& identity() const { return identity_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  FileIdentity identity_;
};

}  // namespace mk
