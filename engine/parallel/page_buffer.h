// PageBuffer: anonymous memory straight from the system, on huge pages where they are to be had.
//
// For weights that every token reads and for scratch: zeroed, aligned to 64 bytes (to 2 MiB from
// that size on), given back when the buffer goes. Thread safety: a value with one owner.

#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "engine/base/result.h"

namespace mk {

class PageBuffer {
 public:
  PageBuffer() = default;
  PageBuffer(PageBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        map_(std::exchange(other.map_, nullptr)),
        map_size_(std::exchange(other.map_size_, 0)) {}
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  ~PageBuffer();

  // kOutOfMemory when the system refuses. Pages become resident when they are first written.
  static Result<PageBuffer> Allocate(size_t bytes);

  // Makes all pages resident at once. For memory that is read before it is written: the system
  // would first map a page of zeros for the read, and interrupt all processors to replace it for
  // the write. Contents stay.
  void MakeResident();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // The buffer as floats; a tail of less than four bytes is left out.
  std::span<float> floats() const {
    return {reinterpret_cast<float*>(data_), size_ / sizeof(float)};
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* map_ = nullptr;
  size_t map_size_ = 0;
};

}  // namespace mk
