// What disks do wrong: it is repeated, continued, or said; it is never taken for weights.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "engine/experts/resident_experts.h"
#include "tests/unit/stream/stream_fixture.h"

namespace mk::test {
namespace {

// Requests experts of the first layer, one at a time, and compares them with what the file holds.
Status TakeAll(const StreamFile& file, StreamedExperts& store, size_t experts) {
  const size_t layer = file.first_layer();
  const ExpertTable table = file.Table();
  for (uint32_t expert = 0; expert < experts; ++expert) {
    uint32_t pending = expert;
    ExpertWeights weights;
    store.Request(layer, {&pending, 1});
    Result<size_t> ready = store.Acquire(layer, {&pending, 1}, {&weights, 1});
    if (ready) {
      const ExpertRecord& record = table[table.KeyOf(layer, expert)];
      std::vector<std::byte> value(record.value_bytes);
      ExpertWeights expected;
      for (size_t part = 0; part < kExpertParts; ++part) {
        std::vector<std::byte> blob(record.parts[part]->size);
        EXPECT_TRUE(file.file()->ReadBlob(*record.parts[part], blob));
        EXPECT_TRUE(PreparePart(*file.file(), record, part, blob.data(), value.data(),
                                file.codebook(), expected));
        const auto matrix = static_cast<ExpertPart>(part);
        const size_t bytes = PreparedExpertBytes(*record.parts[part]);
        const ExpertMatrix& got = MatrixOf(weights, matrix);
        const ExpertMatrix& want = MatrixOf(expected, matrix);
        EXPECT_EQ(got.kind, want.kind);
        const auto* got_bytes =
            got.packed != nullptr ? got.packed : reinterpret_cast<const uint8_t*>(got.values);
        const size_t stored = std::min<size_t>(bytes, record.parts[part]->size);
        EXPECT_EQ(std::memcmp(got_bytes, value.data() + record.value_offset[part], stored), 0);
      }
    }
    store.Release(layer, {&expert, 1});
    if (!ready) return Fail(ready.error());
  }
  return {};
}

TEST(Fetcher, FailuresThatPassAreRepeated) {
  const StreamFile file;
  for (const int error : {EINTR, EAGAIN, EIO}) {
    auto store =
        file.Open(file.Options(), std::make_unique<FaultyReader>([error](size_t n, DiskDone& done) {
                    if (n % 3 != 2) done.error = error;
                  }));
    EXPECT_TRUE(TakeAll(file, *store, 6));
    EXPECT_EQ(store->Stats().failed_reads, 0u);
  }
}

TEST(Fetcher, ShortReadsAreContinued) {
  const StreamFile file;
  auto store = file.Open(file.Options(), std::make_unique<FaultyReader>([](size_t, DiskDone& done) {
                           if (done.bytes > 100) done.bytes = done.bytes / 3 + 1;
                         }));
  EXPECT_TRUE(TakeAll(file, *store, 6));
}

TEST(Fetcher, AFailureForGoodIsAnErrorOfTheRequestAndNotOfTheNext) {
  const StreamFile file;
  std::atomic<bool> broken{true};
  auto store =
      file.Open(file.Options(), std::make_unique<FaultyReader>([&](size_t, DiskDone& done) {
                  if (broken) done = {done.tag, EIO, 0};
                }));
  const Status failed = TakeAll(file, *store, 3);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_NE(failed.error().message.find(file.path()), std::string::npos) << failed.error().message;
  EXPECT_GE(store->Stats().failed_reads, 1u);
  broken = false;
  EXPECT_TRUE(TakeAll(file, *store, 6));
}

TEST(Fetcher, AFileWithoutDirectReadsIsReadThroughThePageCache) {
  const StreamFile file;
  bool refused = false;
  auto store =
      file.Open(file.Options(), std::make_unique<FaultyReader>([&](size_t n, DiskDone& done) {
                  if (n == 0) {
                    done = {done.tag, EINVAL, 0};
                    refused = true;
                  }
                }));
  const bool direct = store->Stats().direct;
  const Status taken = TakeAll(file, *store, 6);
  EXPECT_TRUE(refused);
  if (direct) {
    EXPECT_TRUE(taken) << taken.error().ToString();
    EXPECT_FALSE(store->Stats().direct);
  }
}

TEST(Fetcher, AFileThatIsCutWhileItIsStreamedIsSaidToBe) {
  for (const StreamIo io : {StreamIo::kAuto, StreamIo::kBuffered, StreamIo::kThreads}) {
    const StreamFile file;
    StreamOptions options = file.Options();
    options.io = io;
    auto store = file.Open(options);
    ASSERT_EQ(::truncate(file.path().c_str(), static_cast<off_t>(file.file()->data_start() + 100)),
              0);
    const Status failed = TakeAll(file, *store, file.file()->config().n_experts);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(failed.error().message.find("cut"), std::string::npos) << failed.error().message;
  }
}

}  // namespace
}  // namespace mk::test
