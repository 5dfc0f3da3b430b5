#include "engine/parallel/page_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

namespace mk {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
#ifndef MADV_POPULATE_WRITE  // headers older than the kernel
constexpr int MADV_POPULATE_WRITE = 23;
#endif
constexpr size_t kMaxBytes = size_t{1} << 46;

}  // namespace

Result<PageBuffer> PageBuffer::Allocate(size_t bytes) {
  PageBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > kMaxBytes) {
    return Fail(ErrorCode::kOutOfMemory,
                "cannot allocate " + std::to_string(bytes) + " bytes: more than any machine has");
  }
  const bool huge = bytes >= kHugePage;
  const size_t map_size = huge ? bytes + kHugePage : bytes;  // room to align the start
  void* map = mmap(nullptr, map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    return Fail(ErrorCode::kOutOfMemory,
                "cannot allocate " + std::to_string(bytes) +
                    " bytes: " + std::generic_category().message(errno),
                "free memory, or use a smaller model or fewer sequences");
  }
  uintptr_t start = reinterpret_cast<uintptr_t>(map);
  if (huge) {
    start = (start + kHugePage - 1) / kHugePage * kHugePage;
    // Advice only: without huge pages everything works, a little slower.
    (void)madvise(reinterpret_cast<void*>(start), bytes, MADV_HUGEPAGE);
  }
  buffer.data_ = reinterpret_cast<std::byte*>(start);
  buffer.size_ = bytes;
  buffer.map_ = map;
  buffer.map_size_ = map_size;
  return buffer;
}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(map_, other.map_);
  std::swap(map_size_, other.map_size_);
  return *this;
}

void PageBuffer::MakeResident() {
  if (size_ == 0) return;
  // Advice only (Linux 5.14): a refusal leaves the pages to their first use.
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t start = reinterpret_cast<uintptr_t>(data_) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data_) + size_;
  (void)madvise(reinterpret_cast<void*>(start), end - start, MADV_POPULATE_WRITE);
}

PageBuffer::~PageBuffer() {
  if (map_ != nullptr) munmap(map_, map_size_);
}

}  // namespace mk
