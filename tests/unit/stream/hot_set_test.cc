#include "engine/stream/hot_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "tests/unit/stream/stream_fixture.h"

namespace mk::test {
namespace {

HotSet Some() {
  return {"0123abcd", 4, 16, {63, 0, 17, 5}};
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(HotSet, ComesBackAsItWas) {
  const TempDirectory folder;
  const std::string path = HotSetPath(folder.Path("experts"), "0123abcd");
  EXPECT_EQ(ReadHotSet(path).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(WriteHotSet(path, Some()));
  EXPECT_EQ(*ReadHotSet(path), Some());
  HotSet other = Some();
  other.keys = {1};
  ASSERT_TRUE(WriteHotSet(path, other));
  EXPECT_EQ(*ReadHotSet(path), other);
}

TEST(HotSet, DamageIsNoticed) {
  const TempDirectory folder;
  const std::string path = folder.Path("x.hot");
  ASSERT_TRUE(WriteHotSet(path, Some()));
  const std::string good = ReadAll(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    std::ofstream(path, std::ios::binary) << bad;
    EXPECT_FALSE(ReadHotSet(path)) << i;
    std::ofstream(path, std::ios::binary) << good.substr(0, i);
    EXPECT_FALSE(ReadHotSet(path)) << i;
  }
  // Whole, but naming experts that cannot be, or one twice.
  for (const std::vector<ExpertKey>& keys : {std::vector<ExpertKey>{64}, {3, 3}}) {
    HotSet wrong = Some();
    wrong.keys = keys;
    ASSERT_TRUE(WriteHotSet(path, wrong));
    EXPECT_EQ(ReadHotSet(path).error().code, ErrorCode::kCorrupt);
  }
}

TEST(StreamedExperts, WhatIsWarmedComesInTheBackgroundAsFarAsItFits) {
  const StreamFile file;
  const ExpertTable table = file.Table();
  std::vector<ExpertKey> keys;
  for (ExpertKey key = 0; key < table.keys(); ++key) {
    if (table[key].value_bytes > 0) keys.push_back(key);
  }
  keys.push_back(static_cast<ExpertKey>(table.keys()) + 7);  // of a file that names more
  std::shuffle(keys.begin(), keys.end(), std::mt19937(3));
  for (const double share : {0.3, 2.0}) {
    auto store = file.Open(file.Options(share));
    store->Warm(keys);
    uint64_t before = 1;
    // Until nothing comes any more.
    while (store->Stats().cached_experts != before || before == 0) {
      before = store->Stats().cached_experts;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const StreamStats stats = store->Stats();
    EXPECT_LE(stats.cached_bytes, stats.budget);
    EXPECT_GT(stats.cached_experts, 0u);
    if (share > 1) {
      EXPECT_EQ(stats.cached_experts, keys.size() - 1);
    }
    EXPECT_EQ(store->Hot().size(), stats.cached_experts);
  }
}

}  // namespace
}  // namespace mk::test
