#include "engine/stream/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace mk {
namespace {

TEST(BlockPool, BlocksAreApartAndAligned) {
  BlockPool pool;
  std::set<std::byte*> blocks;
  for (int i = 0; i < 1000; ++i) {
    Result<std::byte*> block = pool.Take(12288);
    ASSERT_TRUE(block);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*block) % 4096, 0u);
    std::memset(*block, i & 0xff, 12288);
    blocks.insert(*block);
  }
  EXPECT_EQ(blocks.size(), 1000u);
  std::byte* last = nullptr;
  for (std::byte* block : blocks) {
    if (last != nullptr) {
      EXPECT_GE(block - last, 12288);
    }
    for (size_t i = 1; i < 12288; ++i) ASSERT_EQ(block[i], block[0]);
    last = block;
  }
  for (std::byte* block : blocks) pool.Give(block, 12288);
  const uint64_t held = pool.held_bytes();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pool.Take(12288));
  EXPECT_EQ(pool.held_bytes(), held);  // the same ones again
}

TEST(BlockPool, MemoryOfAnotherSizeIsGivenBackBeforeMoreIsTaken) {
  BlockPool pool;
  std::vector<std::byte*> small;
  for (int i = 0; i < 2048; ++i) small.push_back(*pool.Take(4096));
  std::byte* const kept = small.back();
  small.pop_back();
  for (std::byte* block : small) pool.Give(block, 4096);
  EXPECT_GE(pool.held_bytes(), uint64_t{2048} * 4096);
  std::byte* const large = *pool.Take(3 << 20);
  // One chunk of the small ones is in use.
  EXPECT_LE(pool.held_bytes(), uint64_t{(2 << 20) + (3 << 20)});
  pool.Give(kept, 4096);
  pool.Give(large, 3 << 20);
  pool.Trim();
  EXPECT_EQ(pool.held_bytes(), 0u);
  EXPECT_TRUE(pool.Take(4096));
}

}  // namespace
}  // namespace mk
