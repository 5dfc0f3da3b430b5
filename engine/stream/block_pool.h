// BlockPool: blocks of a few sizes from the system's memory, kept for the next of the same size.
//
// Blocks are cut from chunks of about 2 MiB, which lie on huge pages where they are to be had; a
// block whose size is a multiple of 4096 is aligned to that, any other one to 64. One thread at a
// time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/result.h"
#include "engine/parallel/page_buffer.h"

namespace mk {

class BlockPool {
 public:
  // `bytes`: a multiple of 64, not zero. kOutOfMemory.
  Result<std::byte*> Take(size_t bytes);
  void Give(std::byte* block, size_t bytes);
  // Gives chunks without a block in use back to the system, but for those of `keep` bytes a block.
  void Trim(size_t keep = 0);
  // Chunks, in use or not.
  uint64_t held_bytes() const { return held_bytes_; }

 private:
  struct Chunk {
    PageBuffer memory;
    size_t used = 0;  // blocks
  };
  struct Size {
    size_t per_chunk = 1;
    std::map<std::byte*, Chunk> chunks;  // by their first byte
    std::vector<std::byte*> free;
  };

  Status Grow(Size& size, size_t bytes);
  static Chunk& ChunkOf(Size& size, std::byte* block);

  std::map<size_t, Size> sizes_;  // by bytes of a block
  uint64_t held_bytes_ = 0;
};

}  // namespace mk
