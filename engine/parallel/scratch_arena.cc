#include "engine/parallel/scratch_arena.h"

#include <algorithm>
#include <new>
#include <utility>

namespace mk {
namespace {

constexpr size_t kSmallestBlock = size_t{1} << 20;

}  // namespace

void ScratchArena::ThrowBadAlloc() {
  throw std::bad_alloc();
}

void* ScratchArena::AllocateBytes(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || bytes > blocks_.back().size() - offset_) {
    Result<PageBuffer> block =
        PageBuffer::Allocate(std::max({bytes, kSmallestBlock, capacity() / 2}));
    if (!block) ThrowBadAlloc();
    blocks_.push_back(std::move(*block));
    offset_ = 0;
  }
  void* start = blocks_.back().data() + offset_;
  offset_ += bytes;
  used_ += bytes;
  return start;
}

void ScratchArena::Reset() {
  if (blocks_.size() > 1) {
    const size_t total = capacity();
    blocks_.clear();
    // On refusal the next pass maps blocks as it needs them.
    if (Result<PageBuffer> block = PageBuffer::Allocate(total)) {
      blocks_.push_back(std::move(*block));
    }
  }
  offset_ = 0;
  used_ = 0;
}

size_t ScratchArena::capacity() const {
  size_t total = 0;
  for (const PageBuffer& block : blocks_) total += block.size();
  return total;
}

}  // namespace mk
