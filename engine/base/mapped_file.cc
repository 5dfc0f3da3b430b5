#include "engine/base/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>

namespace mk {

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(identity_, other.identity_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  auto file = OpenForReading(path);
  if (!file) return Fail(file.error());
  MappedFile mapped;
  mapped.identity_ = file->identity;
  const auto size = static_cast<size_t>(file->identity.size);
  if (size == 0) return mapped;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->fd.get(), 0);
  if (data == MAP_FAILED) return Fail(SystemError(errno, "map", path));
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

}  // namespace mk
