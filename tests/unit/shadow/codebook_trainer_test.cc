// Samples and codebooks against the golden values of the reference engine's rules.

#include "engine/shadow/codebook_trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>
#include <vector>

#include "engine/build/generator.h"
#include "engine/format/vq1.h"
#include "engine/shadow/expert_encoder.h"
#include "engine/shadow/shadow_builder.h"
#include "engine/shadow/vector_sample.h"

namespace mk {
namespace {

constexpr uint64_t kSliceSeed = 0x5eedc0deb00b1e5u;

template <typename T>
uint64_t Fnv(std::span<const T> values) {
  return Fnv1a64({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

std::unique_ptr<ThreadPool> Pool(size_t size) {
  auto pool = ThreadPool::Create(size);
  EXPECT_TRUE(pool);
  return std::move(*pool);
}

TEST(SplitMix64, GivesTheKnownNumbers) {
  SplitMix64 zero(0);
  EXPECT_EQ(zero.Next(), 0xe220a8397b1dcdafu);
  EXPECT_EQ(zero.Next(), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(zero.Next(), 0x06c45d188009454fu);
  SplitMix64 shadow(kShadowSeed);
  EXPECT_EQ(shadow.Next(), 0xdbcab4be53a9fe9bu);
  EXPECT_EQ(shadow.Next(), 0x8824225d2d538a73u);
  EXPECT_EQ(shadow.Next(), 0xdc25afe88515f55au);
}

TEST(VectorSample, KeepsTheKnownItems) {
  VectorSample sample(8, 1);
  for (int item = 0; item < 20; ++item) {
    sample.Offer(std::vector<float>(16, static_cast<float>(item)));
  }
  std::vector<float> kept;
  for (size_t i = 0; i < sample.values().size(); i += 16) kept.push_back(sample.values()[i]);
  EXPECT_EQ(kept, (std::vector<float>{14, 1, 16, 3, 4, 15, 6, 7}));
}

std::vector<float> GoldenSamples() {
  std::vector<float> samples(4096 * 16);
  FillNormal(HashStream(0, "vq-golden"), 0, 0.0f, 1.0, samples);
  return samples;
}

TEST(TrainCodebook, GivesTheGoldenCodebook) {
  const std::vector<float> samples = GoldenSamples();
  ASSERT_EQ(Fnv(std::span(samples)), 0xc10d9383260fe85du);
  for (const size_t workers : {1u, 3u}) {
    const auto pool = Pool(workers);
    auto trained = TrainCodebook(samples, kSliceSeed, *pool);
    ASSERT_TRUE(trained) << trained.error().ToString();
    EXPECT_EQ(trained->rounds, 21u);
    EXPECT_EQ(Fnv(trained->entries()), 0xe1fa4fff93408ecfu);
    EXPECT_EQ(trained->entries()[0], -1.21609068f);
    auto encoder = ExpertEncoder::Create(trained->entries(), 1);
    ASSERT_TRUE(encoder);
    ExpertEncoder::Buffers buffers;
    buffers.values = samples;
    std::vector<std::byte> bytes(4096);
    EXPECT_NEAR(encoder->Encode(buffers, bytes).relative_error(), 0.693050, 5e-7);
    EXPECT_EQ(Fnv(std::span<const std::byte>(bytes)), 0xe43c252317838d44u);
  }
}

// What the definition says for samples that are fewer than entries, and for equal ones, whose
// entries stay empty.
TEST(TrainCodebook, HandlesFewAndEqualSamples) {
  const auto pool = Pool(2);
  std::vector<float> few(5 * 16);
  for (size_t i = 0; i < few.size(); ++i) few[i] = static_cast<float>(i) - 30.0f;
  auto trained = TrainCodebook(few, 3, *pool);
  ASSERT_TRUE(trained);
  EXPECT_EQ(trained->rounds, 2u);
  std::vector<float> expected(256 * 16);
  SplitMix64 random(3);
  std::vector<size_t> order;
  while (order.size() < 5) {
    const size_t i = random.Below(5);
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  }
  for (size_t k = 0; k < 256; ++k) {
    // Empty entries take the last sample: all distances are zero.
    const size_t sample = k < 5 ? order[k] : 4;
    std::copy_n(&few[sample * 16], 16, &expected[k * 16]);
  }
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), trained->entries().begin()));

  const std::vector<float> equal(600 * 16, 0.25f);
  trained = TrainCodebook(equal, 3, *pool);
  ASSERT_TRUE(trained);
  for (const float value : trained->entries()) EXPECT_EQ(value, 0.25f);
  EXPECT_FALSE(TrainCodebook({}, 3, *pool));
}

TEST(TrainCodebook, IsEndedByItsCaller) {
  const auto pool = Pool(1);
  const auto trained = TrainCodebook(GoldenSamples(), 1, *pool, [](size_t r) { return r < 3; });
  ASSERT_FALSE(trained);
  EXPECT_EQ(trained.error().code, ErrorCode::kCancelled);
}

// Sums over the stages, against arithmetic of its own.
TEST(ExpertEncoder, EncodesWhatIsLeftOver) {
  const std::vector<float> samples = GoldenSamples();
  const std::span<const float> all(samples);
  std::vector<float> codebooks(all.begin(), all.begin() + 2 * 4096);
  auto encoder = ExpertEncoder::Create(codebooks, 2);
  ASSERT_TRUE(encoder);
  ExpertEncoder::Buffers buffers;
  buffers.values.assign(all.end() - 100 * 16, all.end());
  const std::vector<float> values = buffers.values;
  std::vector<std::byte> bytes(200);
  const Energies energies = encoder->Encode(buffers, bytes);
  double wrong = 0, sum = 0, shadow = 0;
  for (size_t g = 0; g < 100; ++g) {
    std::vector<float> rest(&values[g * 16], &values[g * 16] + 16);
    for (size_t s = 0; s < 2; ++s) {
      const std::span<const float> book(&codebooks[s * 4096], 4096);
      const uint8_t nearest = NearestVq1(std::span<const float, 16>(rest.data(), 16), book);
      ASSERT_EQ(std::to_integer<uint8_t>(bytes[g * 2 + s]), nearest);
      for (size_t j = 0; j < 16; ++j) rest[j] -= book[nearest * 16 + j];
    }
    for (size_t j = 0; j < 16; ++j) {
      const double value = double{values[g * 16 + j]} - double{rest[j]};
      shadow += value * value;
      wrong += double{rest[j]} * double{rest[j]};
      sum += double{values[g * 16 + j]} * double{values[g * 16 + j]};
    }
  }
  EXPECT_NEAR(energies.relative_error(), std::sqrt(wrong / sum), 1e-9);
  EXPECT_NEAR(energies.gain(), std::sqrt(sum / shadow), 1e-6);
  EXPECT_EQ(Energies().relative_error(), 0);
  EXPECT_EQ(Energies().gain(), 1);
}

}  // namespace
}  // namespace mk
