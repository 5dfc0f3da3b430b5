#include "engine/stream/block_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mk {
namespace {

constexpr size_t kChunkBytes = size_t{2} << 20;

}  // namespace

BlockPool::Chunk& BlockPool::ChunkOf(Size& size, std::byte* block) {
  return std::prev(size.chunks.upper_bound(block))->second;
}

Status BlockPool::Grow(Size& size, size_t bytes) {
  size.per_chunk = std::max<size_t>(1, kChunkBytes / bytes);
  Result<PageBuffer> memory = PageBuffer::Allocate(size.per_chunk * bytes);
  if (!memory) return Fail(memory.error());
  held_bytes_ += memory->size();
  std::byte* const first = memory->data();
  size.chunks.emplace(first, Chunk{std::move(*memory), 0});
  for (size_t i = size.per_chunk; i > 0; --i) size.free.push_back(first + (i - 1) * bytes);
  return {};
}

Result<std::byte*> BlockPool::Take(size_t bytes) {
  Size& size = sizes_[bytes];
  if (size.free.empty()) {
    Trim(bytes);
    if (Status grown = Grow(size, bytes); !grown) return Fail(grown.error());
  }
  std::byte* const block = size.free.back();
  size.free.pop_back();
  ++ChunkOf(size, block).used;
  return block;
}

void BlockPool::Give(std::byte* block, size_t bytes) {
  Size& size = sizes_[bytes];
  --ChunkOf(size, block).used;
  size.free.push_back(block);
}

void BlockPool::Trim(size_t keep) {
  for (auto& [bytes, size] : sizes_) {
    if (bytes == keep || size.free.size() < size.per_chunk) continue;
    Size& trimmed = size;
    std::erase_if(size.free, [&](std::byte* block) { return ChunkOf(trimmed, block).used == 0; });
    std::erase_if(size.chunks, [&](const auto& one) {
      if (one.second.used > 0) return false;
      held_bytes_ -= one.second.memory.size();
      return true;
    });
  }
}

}  // namespace mk
