#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/format/dtype.h"
#include "engine/format/mxfp4.h"
#include "engine/format/vq1.h"

namespace mk {
namespace {

// Levels of a nibble, written out for the tests alone.
double Level(unsigned code) {
  static const double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8 ? -1 : 1) * kMagnitudes[code & 7];
}

std::string Hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (const uint8_t byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

struct Encoded {
  int scale = -1;
  std::string packed;
  double error = 0;  // sum of squares
};

Encoded Encode(const std::array<float, 32>& values, Mxfp4Search search = Mxfp4Search::kError) {
  std::array<uint8_t, 16> packed{};
  uint8_t scale = 0;
  EXPECT_TRUE(EncodeMxfp4Group(values, packed, scale, search).has_value());
  Encoded out{scale, Hex(packed), 0};
  for (size_t i = 0; i < 32; ++i) {
    const unsigned code = (packed[i / 2] >> (4 * (i % 2))) & 15;
    const double d = values[i] - std::ldexp(Level(code), scale - 127);
    out.error += d * d;
  }
  return out;
}

std::array<float, 32> GroupA() {
  std::array<float, 32> v{};
  v.fill(0.2f);
  v[0] = 0.8f;
  return v;
}

TEST(Mxfp4, RecordedGroupA) {
  const Encoded naive = Encode(GroupA(), Mxfp4Search::kNone);
  EXPECT_EQ(naive.scale, 127 - 2);
  EXPECT_NEAR(naive.error, 0.079999992, 1e-7);
  const Encoded best = Encode(GroupA());
  EXPECT_EQ(best.scale, 124);
  EXPECT_EQ(best.packed, "37" + Repeat("33", 15));
  EXPECT_NEAR(best.error, 0.0073437535, 1e-8);
}

TEST(Mxfp4, RecordedGroupB) {
  std::array<float, 32> v{};
  for (size_t i = 0; i < 32; ++i) v[i] = i % 2 == 1 ? 0.2f : -0.2f;
  v[5] = -0.8f;
  const Encoded best = Encode(v);
  EXPECT_EQ(best.scale, 124);
  EXPECT_EQ(best.packed, "3b3bfb" + Repeat("3b", 13));
}

TEST(Mxfp4, RecordedGroupC) {
  std::array<float, 32> v{};
  for (size_t i = 0; i < 32; ++i) v[i] = static_cast<float>(i) / 8 - 2;
  const Encoded best = Encode(v);
  EXPECT_EQ(best.scale, 126);
  EXPECT_EQ(best.packed, "eededdcdccbbaa991021324344555566");
  EXPECT_NEAR(best.error, 0.5, 1e-12);
}

TEST(Mxfp4, RecordedGroupDTiesGoAwayFromZero) {
  std::array<float, 32> v = {6, -6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -0.2499f};
  v[31] = -0.0f;
  const Encoded best = Encode(v);
  EXPECT_EQ(best.scale, 127);
  EXPECT_EQ(best.packed, "f7214365970800000000000000000080");
  EXPECT_NEAR(best.error, 1.87495001, 1e-6);
}

TEST(Mxfp4, RecordedGroupEReachesTheSubnormalScale) {
  std::array<float, 32> v{};
  v.fill(1e-38f);
  const Encoded best = Encode(v);
  EXPECT_EQ(best.scale, 0);
  EXPECT_EQ(best.packed, Repeat("33", 16));
}

TEST(Mxfp4, ZerosHaveTheSmallestScale) {
  const Encoded zeros = Encode({});
  EXPECT_EQ(zeros.scale, 0);
  EXPECT_EQ(zeros.packed, Repeat("00", 16));
}

TEST(Mxfp4, LargestFloatsNeverGetTheInvalidScale) {
  std::array<float, 32> v{};
  v.fill(std::numeric_limits<float>::max());
  const Encoded best = Encode(v);
  EXPECT_LT(best.scale, 255);
  EXPECT_EQ(best.scale, 127 + 126);  // 4 * 2^126 is the nearest below
}

TEST(Mxfp4, SearchFindsTheBestExponentOfAWideRange) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 3000; ++round) {
    std::array<float, 32> v{};
    const float heavy = round % 3 == 0 ? 8.0f : 1.0f;
    for (float& x : v) x = normal(random);
    v[round % 32] *= heavy;
    const Encoded best = Encode(v);
    const Encoded naive = Encode(v, Mxfp4Search::kNone);
    EXPECT_LE(best.error, naive.error);
    // Brute force in f64 over seven exponents: nearest level, no codec code.
    double least = std::numeric_limits<double>::infinity();
    for (int e = naive.scale - 127 - 4; e <= naive.scale - 127 + 3; ++e) {
      double sum = 0;
      for (const float x : v) {
        double nearest = std::numeric_limits<double>::infinity();
        for (unsigned code = 0; code < 16; ++code) {
          nearest = std::min(nearest, std::fabs(x - std::ldexp(Level(code), e)));
        }
        sum += nearest * nearest;
      }
      least = std::min(least, sum);
    }
    EXPECT_NEAR(best.error, least, 1e-9 * least);
  }
}

TEST(Mxfp4, ScaleBytesArePowersOfTwo) {
  for (int s = 0; s < 255; ++s) {
    EXPECT_EQ(static_cast<double>(DecodeE8m0(static_cast<uint8_t>(s))), std::ldexp(1.0, s - 127));
  }
}

TEST(Mxfp4, PositionsOfAMatrixAreRowMajorLowNibbleFirst) {
  // Two rows of 64 columns, each value its own code.
  std::vector<std::byte> blob(2 * 64 / 2 + 2 * 2);
  for (size_t i = 0; i < 64; ++i)
    blob[i] = static_cast<std::byte>((2 * i + 1) % 16 << 4 | (2 * i) % 16);
  const int scales[] = {127, 128, 125, 0};
  for (size_t g = 0; g < 4; ++g) blob[64 + g] = static_cast<std::byte>(scales[g]);
  std::vector<float> values(128);
  ASSERT_TRUE(DecodeMxfp4(blob, 2, 64, values).has_value());
  for (size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(values[i], std::ldexp(Level(i % 16), scales[i / 32] - 127)) << i;
  }
}

TEST(Mxfp4, EncodingWhatWasDecodedChangesNothing) {
  std::mt19937_64 random(9);
  std::vector<float> values(4 * 96);
  std::normal_distribution<float> normal;
  for (float& v : values) v = normal(random);
  std::vector<std::byte> blob(4 * 96 / 2 + 4 * 3);
  std::vector<float> decoded(values.size());
  std::vector<float> again(values.size());
  ASSERT_TRUE(EncodeMxfp4(values, 4, 96, blob).has_value());
  ASSERT_TRUE(DecodeMxfp4(blob, 4, 96, decoded).has_value());
  ASSERT_TRUE(EncodeMxfp4(decoded, 4, 96, blob).has_value());
  ASSERT_TRUE(DecodeMxfp4(blob, 4, 96, again).has_value());
  EXPECT_EQ(decoded, again);
}

TEST(Mxfp4, BadInputIsRefusedWithItsPlace) {
  std::vector<float> values(2 * 64, 1.0f);
  std::vector<std::byte> blob(64 + 4);
  values[64 + 35] = std::numeric_limits<float>::quiet_NaN();
  Status status = EncodeMxfp4(values, 2, 64, blob);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kNumeric);
  EXPECT_NE(status.error().message.find("[1][35]"), std::string::npos);
  values[99] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(EncodeMxfp4(values, 2, 64, blob).has_value());
  EXPECT_FALSE(EncodeMxfp4(values, 4, 32, std::span(blob).first(60)).has_value());
  EXPECT_FALSE(EncodeMxfp4(std::span(values).first(48), 1, 48, blob).has_value());
  blob[64 + 3] = std::byte{255};
  status = DecodeMxfp4(blob, 2, 64, values);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(status.error().message.find("row 1"), std::string::npos);
}

TEST(Mxfp4Sq, RecordedMatrix) {
  std::vector<float> values(64);
  const auto a = GroupA();
  std::copy(a.begin(), a.end(), values.begin());
  for (size_t i = 0; i < 32; ++i) {
    values[32 + i] = 0.1f * static_cast<float>(static_cast<int>(i % 7) - 3);
  }
  std::vector<std::byte> blob(32 + 2 + 4);
  ASSERT_TRUE(EncodeMxfp4Sq(values, 1, 64, blob).has_value());
  float smax = 0;
  std::memcpy(&smax, blob.data() + 34, 4);
  EXPECT_EQ(smax, 0.13333334f);
  EXPECT_EQ(std::to_integer<int>(blob[32]), 255);
  EXPECT_EQ(std::to_integer<int>(blob[33]), 156);
  EXPECT_EQ(DecodeSquareScale(156, smax), 0.05014852f);
  const std::span<const uint8_t> packed(reinterpret_cast<const uint8_t*>(blob.data()), 32);
  EXPECT_EQ(Hex(packed), "37" + Repeat("33", 15) + "ef0c64f7ce4076ef0c64f7ce4076ef0c");
  std::vector<float> decoded(64);
  ASSERT_TRUE(DecodeMxfp4Sq(blob, 1, 64, decoded).has_value());
  EXPECT_EQ(decoded[0], 6 * 0.13333334f);
  EXPECT_EQ(decoded[33], -4 * 0.05014852f);
}

TEST(Mxfp4Sq, ZerosStayZeros) {
  const std::vector<float> zeros(64);
  std::vector<std::byte> blob(38, std::byte{0x77});
  ASSERT_TRUE(EncodeMxfp4Sq(zeros, 2, 32, blob).has_value());
  for (const std::byte byte : blob) EXPECT_EQ(byte, std::byte{0});
  std::vector<float> decoded(64, 1.0f);
  ASSERT_TRUE(DecodeMxfp4Sq(blob, 2, 32, decoded).has_value());
  EXPECT_EQ(decoded, zeros);
}

TEST(Mxfp4Sq, NothingClipsAndTheScaleIsTheSmallest) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(8 * 64);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * static_cast<float>(1 + i / 64);
  }
  std::vector<std::byte> blob(8 * 32 + 16 + 4);
  ASSERT_TRUE(EncodeMxfp4Sq(values, 8, 64, blob).has_value());
  float smax = 0;
  std::memcpy(&smax, blob.data() + 8 * 32 + 16, 4);
  for (size_t g = 0; g < 16; ++g) {
    float max = 0;
    for (size_t i = 0; i < 32; ++i) max = std::max(max, std::fabs(values[32 * g + i]));
    const int q = std::to_integer<int>(blob[256 + g]);
    const auto worth = [smax](int s) { return std::pow((s + 1) / 256.0, 2) * smax * 6; };
    EXPECT_GE(worth(q), max * (1 - 1e-6)) << g;
    if (q > 0) {
      EXPECT_LT(worth(q - 1), max * (1 + 1e-6)) << g;
    }
  }
}

TEST(Mxfp4Sq, BadSmaxIsRefused) {
  std::vector<std::byte> blob(22);
  std::vector<float> values(32);
  for (const float smax :
       {-1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::memcpy(blob.data() + 17, &smax, 4);
    EXPECT_FALSE(DecodeMxfp4Sq(std::span(blob).first(21), 1, 32, values).has_value());
  }
}

std::vector<float> Codebook() {
  std::vector<float> book(kVq1CodebookSize);
  for (size_t i = 0; i < book.size(); ++i) {
    book[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 24 & 0xff) - 128) / 64;
  }
  return book;
}

TEST(Vq1, EntriesOfTheCodebookComeBackExactly) {
  const auto book = Codebook();
  std::vector<float> values;
  std::vector<std::byte> expected;
  for (const int entry : {3, 250, 0, 77}) {
    values.insert(values.end(), book.begin() + entry * 16, book.begin() + (entry + 1) * 16);
    expected.push_back(static_cast<std::byte>(entry));
  }
  std::vector<std::byte> blob(4);
  ASSERT_TRUE(EncodeVq1(values, 2, 32, book, {}, blob).has_value());
  EXPECT_EQ(blob, expected);
  std::vector<float> decoded(64);
  ASSERT_TRUE(DecodeVq1(blob, 2, 32, book, decoded).has_value());
  EXPECT_EQ(decoded, values);
}

TEST(Vq1, TheLowestIndexWinsATie) {
  const std::vector<float> same(kVq1CodebookSize, 1.0f);
  const std::array<float, 16> values{};
  EXPECT_EQ(NearestVq1(values, same), 0);
}

TEST(Vq1, WeightsMoveTheChoice) {
  std::vector<float> book(kVq1CodebookSize, 100.0f);
  std::array<float, 16> values{};
  // Entry 4 is off by 2 in column 0; entry 9 is off by 1 in columns 1 and 2 and 3.
  for (size_t i = 0; i < 16; ++i) book[4 * 16 + i] = book[9 * 16 + i] = 0;
  book[4 * 16] = 2;
  book[9 * 16 + 1] = book[9 * 16 + 2] = book[9 * 16 + 3] = 1;
  EXPECT_EQ(NearestVq1(values, book), 9);
  std::array<float, 16> weights;
  weights.fill(1);
  weights[0] = 0.5f;
  EXPECT_EQ(NearestVq1(values, book, weights), 4);
}

TEST(Vq1, BadSizesAreRefused) {
  const auto book = Codebook();
  std::vector<float> values(32, std::numeric_limits<float>::quiet_NaN());
  std::vector<std::byte> blob(2);
  EXPECT_EQ(EncodeVq1(values, 1, 32, book, {}, blob).error().code, ErrorCode::kNumeric);
  EXPECT_FALSE(EncodeVq1(std::span(values).first(24), 1, 24, book, {}, blob).has_value());
  EXPECT_FALSE(DecodeVq1(blob, 1, 32, std::span(book).first(100), values).has_value());
  EXPECT_FALSE(DecodeVq1(blob, 2, 32, book, values).has_value());
  EXPECT_FALSE(EncodeVq1(values, 1, 32, book, std::span(book).first(16), blob).has_value());
}

TEST(DType, BlobSizes) {
  const std::array<uint32_t, 2> matrix = {64, 128};
  EXPECT_EQ(BlobBytes(DType::kF32, matrix), 32768u);
  EXPECT_EQ(BlobBytes(DType::kMxfp4, matrix), 4352u);
  EXPECT_EQ(BlobBytes(DType::kMxfp4Sq, matrix), 4356u);
  EXPECT_EQ(BlobBytes(DType::kVq1, matrix), 512u);
  EXPECT_EQ(BlobBytes(DType::kBf16, matrix), 16384u);
  const std::array<uint32_t, 2> ragged = {64, 40};
  EXPECT_EQ(BlobBytes(DType::kMxfp4, ragged), std::nullopt);
  EXPECT_EQ(BlobBytes(DType::kVq1, ragged), std::nullopt);
  const std::array<uint32_t, 4> huge = {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff};
  EXPECT_EQ(ElementCount(huge), std::nullopt);
  const std::array<uint32_t, 2> largest = {1u << 24, 1u << 24};
  EXPECT_EQ(ElementCount(largest), uint64_t{1} << 48);
  const std::array<uint32_t, 2> none = {3, 0};
  EXPECT_EQ(ElementCount(none), std::nullopt);
  for (int code = 0; code < 256; ++code) {
    const bool known = code <= 4 || code == 16;
    EXPECT_EQ(DTypeFromCode(static_cast<uint8_t>(code)).has_value(), known) << code;
  }
}

}  // namespace
}  // namespace mk
