// ScratchArena: memory that lives for one forward pass.
//
// A bump allocator. Reset() starts the next pass and takes everything back at once; the arena
// keeps the most that any pass has used, so a steady load allocates nothing. Blocks are anonymous
// mappings, 64-byte aligned spans, contents undefined.
//
// Thread safety: one thread; the spans may be handed to others.

#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/parallel/page_buffer.h"

namespace mk {

class ScratchArena {
 public:
  ScratchArena() = default;
  ScratchArena(ScratchArena&&) = default;
  ScratchArena& operator=(ScratchArena&&) = default;

  // `count` elements, valid until Reset. When the block in hand is full, another one is mapped;
  // throws std::bad_alloc when the system refuses, as a standard container does: whoever owns the
  // pass catches it and reports kOutOfMemory.
  template <typename T>
  std::span<T> Allocate(size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    static_assert(alignof(T) <= kAlignment);
    if (count > kMaxBytes / sizeof(T)) ThrowBadAlloc();
    return {static_cast<T*>(AllocateBytes(count * sizeof(T))), count};
  }

  // Takes all spans back. If the last pass needed several blocks they are replaced by one that
  // holds them all.
  void Reset();

  // What is mapped now, and what was handed out since Reset, in bytes.
  size_t capacity() const;
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kMaxBytes = size_t{1} << 46;
  [[noreturn]] static void ThrowBadAlloc();
  void* AllocateBytes(size_t bytes);

  std::vector<PageBuffer> blocks_;  // the last one is in hand
  size_t offset_ = 0;               // first free byte of the last block
  size_t used_ = 0;
};

}  // namespace mk
