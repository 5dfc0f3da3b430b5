#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "engine/parallel/page_buffer.h"
#include "engine/parallel/scratch_arena.h"

namespace mk {
namespace {

uintptr_t Address(const void* p) {
  return reinterpret_cast<uintptr_t>(p);
}

TEST(PageBuffer, IsZeroedAlignedAndWritableToTheEnd) {
  for (size_t bytes : {size_t{1}, size_t{100}, size_t{4096}, (size_t{2} << 20) - 1, size_t{2} << 20,
                       (size_t{5} << 20) + 12}) {
    Result<PageBuffer> buffer = PageBuffer::Allocate(bytes);
    ASSERT_TRUE(buffer) << bytes;
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(Address(buffer->data()) % 64, 0u);
    if (bytes >= size_t{2} << 20) {
      EXPECT_EQ(Address(buffer->data()) % (size_t{2} << 20), 0u);
    }
    EXPECT_EQ(buffer->data()[0], std::byte{0});
    EXPECT_EQ(buffer->data()[bytes - 1], std::byte{0});
    std::memset(buffer->data(), 0xff, bytes);
    EXPECT_EQ(buffer->floats().size(), bytes / 4);
  }
}

TEST(PageBuffer, EmptyAndMovedFromHoldNothing) {
  Result<PageBuffer> empty = PageBuffer::Allocate(0);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->size(), 0u);
  PageBuffer a = *PageBuffer::Allocate(100);
  std::byte* data = a.data();
  PageBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: what a move leaves is part of the contract
  b = *PageBuffer::Allocate(50);
  EXPECT_EQ(b.size(), 50u);
}

TEST(PageBuffer, RefusesWhatNoMachineHas) {
  for (size_t bytes : {SIZE_MAX, SIZE_MAX / 2, (size_t{1} << 46) + 1}) {
    Result<PageBuffer> buffer = PageBuffer::Allocate(bytes);
    ASSERT_FALSE(buffer);
    EXPECT_EQ(buffer.error().code, ErrorCode::kOutOfMemory);
  }
}

TEST(ScratchArena, SpansAreAlignedAndDistinct) {
  ScratchArena arena;
  std::span<float> a = arena.Allocate<float>(3);
  std::span<int32_t> b = arena.Allocate<int32_t>(17);
  std::span<float> c = arena.Allocate<float>(0);
  EXPECT_EQ(a.size(), 3u);
  EXPECT_EQ(c.size(), 0u);
  EXPECT_EQ(Address(a.data()) % 64, 0u);
  EXPECT_EQ(Address(b.data()) % 64, 0u);
  EXPECT_GE(Address(b.data()), Address(a.data() + a.size()));
}

TEST(ScratchArena, KeepsEarlierSpansWhenItGrows) {
  ScratchArena arena;
  std::span<uint8_t> first = arena.Allocate<uint8_t>(1000);
  std::memset(first.data(), 7, first.size());
  for (int i = 0; i < 10; ++i) {
    std::span<uint8_t> more = arena.Allocate<uint8_t>(size_t{3} << 20);
    std::memset(more.data(), i, more.size());
  }
  for (uint8_t byte : first) ASSERT_EQ(byte, 7);
}

TEST(ScratchArena, SteadyLoadAllocatesNothing) {
  ScratchArena arena;
  const auto pass = [&] {
    arena.Reset();
    EXPECT_EQ(arena.used(), 0u);
    void* first = arena.Allocate<float>(100).data();
    for (int i = 0; i < 20; ++i) arena.Allocate<float>(200'000);
    return first;
  };
  pass();
  void* start = pass();  // the first Reset joined the blocks
  const size_t capacity = arena.capacity();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(pass(), start);
    EXPECT_EQ(arena.capacity(), capacity);
  }
}

TEST(ScratchArena, ThrowsOnImpossibleSizes) {
  ScratchArena arena;
  EXPECT_THROW(arena.Allocate<float>(SIZE_MAX / 4), std::bad_alloc);
  EXPECT_THROW(arena.Allocate<double>(SIZE_MAX), std::bad_alloc);
  EXPECT_EQ(arena.Allocate<float>(10).size(), 10u);
}

}  // namespace
}  // namespace mk
