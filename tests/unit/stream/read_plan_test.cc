#include "engine/stream/read_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/unit/stream/stream_fixture.h"

namespace mk::test {
namespace {

// What two neighbouring reads would cost as one.
uint64_t HoleBetween(const PlannedRead& a, const PlannedRead& b) {
  return b.offset - a.end();
}

TEST(ReadPlan, EveryPartIsReadOnceAndNeighboursShare) {
  const StreamFile file;
  const ExpertTable table = file.Table();
  std::mt19937 random(7);
  for (const uint64_t hole : {uint64_t{0}, uint64_t{64}, uint64_t{4096}, uint64_t{1} << 20}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<ExpertKey> keys;
      for (ExpertKey key = 0; key < table.keys(); ++key) {
        if (table[key].value_bytes > 0 && random() % 3 == 0) keys.push_back(key);
      }
      std::shuffle(keys.begin(), keys.end(), random);
      ReadPlanOptions options;
      options.hole = hole;
      options.longest = 200'000;
      std::map<std::pair<ExpertKey, uint32_t>, int> seen;
      const std::vector<PlannedRead> reads = PlanReads(table, keys, options);
      for (const PlannedRead& read : reads) {
        uint64_t payload = 0;
        for (const ReadPiece& piece : read.pieces) {
          ++seen[{piece.key, piece.part}];
          const TensorEntry& entry = *table[piece.key].parts[piece.part];
          EXPECT_EQ(piece.offset, entry.offset);
          EXPECT_GE(piece.offset, read.offset);
          EXPECT_LE(piece.offset + entry.size, read.end());
          payload += entry.size;
        }
        EXPECT_LE(read.bytes, options.longest);
        EXPECT_LE(read.bytes, payload + hole * (read.pieces.size() - 1));
      }
      EXPECT_EQ(seen.size(), keys.size() * kExpertParts);
      for (const auto& [part, times] : seen) EXPECT_EQ(times, 1);
      // Nothing that could have been joined was left apart.
      for (size_t i = 1; i < reads.size(); ++i) {
        const uint64_t first = table[reads[i].pieces[0].key].parts[reads[i].pieces[0].part]->size;
        EXPECT_TRUE(HoleBetween(reads[i - 1], reads[i]) > hole ||
                    reads[i].offset + first - reads[i - 1].offset > options.longest);
      }
    }
  }
}

TEST(ReadPlan, WithoutFusionAReadHasOneExpert) {
  const StreamFile file;
  const ExpertTable table = file.Table();
  std::vector<ExpertKey> keys;
  for (ExpertKey key = 0; key < table.keys(); ++key) {
    if (table[key].value_bytes > 0) keys.push_back(key);
  }
  ReadPlanOptions options;
  options.fuse = false;
  for (const PlannedRead& read : PlanReads(table, keys, options)) {
    for (const ReadPiece& piece : read.pieces) EXPECT_EQ(piece.key, read.pieces[0].key);
  }
  EXPECT_TRUE(PlanReads(table, {}, options).empty());
}

}  // namespace
}  // namespace mk::test
