#include "engine/kernels/expert_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/format/mxfp4.h"
#include "engine/parallel/page_buffer.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

// A random matrix in file layout, one byte off alignment, and inputs.
struct Problem {
  ExpertKind kind;
  size_t rows, cols, n;
  std::vector<uint8_t> packed, scales;
  std::vector<float> values, x;
  float smax = 0.37f;
  PageBuffer codebook;

  Problem(ExpertKind k, size_t r, size_t c, size_t count, uint32_t seed)
      : kind(k), rows(r), cols(c), n(count) {
    Random random(seed);
    x = random.Normals(n * cols);
    if (kind == ExpertKind::kF32) values = random.Normals(rows * cols);
    const size_t bytes = kind == ExpertKind::kVq1 ? rows * cols / 16 : rows * cols / 2;
    packed.resize(bytes + 1);
    for (uint8_t& b : packed) b = random.Byte();
    scales.resize(rows * cols / 32 + 1);
    for (uint8_t& s : scales) {
      s = kind == ExpertKind::kMxfp4 ? static_cast<uint8_t>(118 + random.Byte() % 16)
                                     : random.Byte();
    }
    codebook = std::move(*PageBuffer::Allocate(256 * 16 * 4));
    for (float& v : codebook.floats()) v = random.Normal();
  }

  ExpertMatrix matrix() const {
    return {kind,
            rows,
            cols,
            packed.data() + 1,
            scales.data() + 1,
            smax,
            values.data(),
            codebook.floats().data()};
  }
  ExpertJob Job(std::vector<float>& y) const {
    return {matrix(), x.data(), cols, y.data(), rows, n};
  }

  float Nibble(size_t r, size_t c) const {
    const uint8_t byte = packed[1 + (r * cols + c) / 2];
    return kE2m1[c % 2 == 0 ? byte & 15 : byte >> 4];
  }
  float GroupScale(size_t r, size_t g) const {
    const uint8_t s = scales[1 + r * cols / 32 + g];
    return kind == ExpertKind::kMxfp4 ? DecodeE8m0(s) : DecodeSquareScale(s, smax);
  }
  // Weight as a float, for kinds of one product per weight.
  float Plain(size_t r, size_t c) const {
    if (kind == ExpertKind::kF32) return values[r * cols + c];
    return codebook.floats()[size_t{packed[1 + (r * cols + c) / 16]} * 16 + c % 16];
  }
  bool nibbles() const { return kind == ExpertKind::kMxfp4 || kind == ExpertKind::kMxfp4Sq; }
  double Weight(size_t r, size_t c) const {
    if (!nibbles()) return Plain(r, c);
    return double{Nibble(r, c)} * double{GroupScale(r, c / 32)};
  }

  // The definition, output by output.
  float Twin(size_t r, size_t i) const {
    const float* in = x.data() + i * cols;
    float lanes[16] = {};
    if (nibbles()) {
      for (size_t g = 0; g < cols / 32; ++g) {
        const float half = GroupScale(r, g) * 0.5f;
        for (size_t j = 0; j < 16; ++j) {
          const size_t a = g * 32 + j, b = a + 16;
          const float partial = std::fma(2 * Nibble(r, b), in[b], 2 * Nibble(r, a) * in[a]);
          lanes[j] = std::fma(partial, half, lanes[j]);
        }
      }
    } else {
      for (size_t c = 0; c < cols; ++c) lanes[c % 16] = std::fma(Plain(r, c), in[c], lanes[c % 16]);
    }
    return TreeSum(lanes);
  }
  std::vector<float> Twin() const {
    const FlushDenormals flush;
    std::vector<float> y(n * rows);
    for (size_t i = 0; i < n; ++i) {
      for (size_t r = 0; r < rows; ++r) y[i * rows + r] = Twin(r, i);
    }
    return y;
  }
};

class ExpertKinds : public testing::TestWithParam<ExpertKind> {
 protected:
  // The smallest step in columns, and an odd one for F32.
  size_t Cols(size_t groups) const {
    switch (GetParam()) {
      case ExpertKind::kF32:
        return groups * 32 - 5;
      case ExpertKind::kVq1:
        return groups * 32 - 16;
      default:
        return groups * 32;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, ExpertKinds,
                         testing::Values(ExpertKind::kF32, ExpertKind::kMxfp4, ExpertKind::kMxfp4Sq,
                                         ExpertKind::kVq1));

TEST_P(ExpertKinds, EqualsItsDefinitionOnEveryTarget) {
  uint32_t seed = 100;
  for (size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 65}) {
    for (size_t rows : {1u, 7u, 22u}) {
      for (size_t groups : {1u, 5u}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << groups << " groups, n=" << n);
        const Problem problem(GetParam(), rows, Cols(groups), n, seed++);
        const std::vector<float> expected = problem.Twin();
        ForEachTarget([&] {
          std::vector<float> y(n * rows, NAN);
          const FlushDenormals flush;
          ExpertMatMul(problem.Job(y), 0, rows);
          ExpectSameBits(y, expected);
        });
      }
    }
  }
}

TEST_P(ExpertKinds, IsCloseToDoublePrecision) {
  const Problem problem(GetParam(), 40, Cols(30), 3, 77);
  std::vector<float> y(3 * 40);
  ExpertMatMul(problem.Job(y), 0, 40);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t r = 0; r < 40; ++r) {
      double sum = 0, magnitude = 0;
      for (size_t c = 0; c < problem.cols; ++c) {
        const double product = problem.Weight(r, c) * double{problem.x[i * problem.cols + c]};
        sum += product;
        magnitude += std::fabs(product);
      }
      EXPECT_NEAR(y[i * 40 + r], sum, magnitude * 1e-6);
    }
  }
}

TEST_P(ExpertKinds, BatchEqualsSingleRows) {
  const Problem problem(GetParam(), 33, Cols(4), 65, 55);
  std::vector<float> batch(65 * 33), single(65 * 33);
  ExpertMatMul(problem.Job(batch), 0, 33);
  for (size_t i = 0; i < 65; ++i) {
    ExpertMatMul({problem.matrix(), problem.x.data() + i * problem.cols, problem.cols,
                  single.data() + i * 33, 33, 1},
                 0, 33);
  }
  EXPECT_EQ(std::memcmp(batch.data(), single.data(), batch.size() * 4), 0);
}

TEST_P(ExpertKinds, WritesOnlyTheRowsAskedFor) {
  const Problem problem(GetParam(), 20, Cols(2), 3, 66);
  const std::vector<float> expected = problem.Twin();
  ForEachTarget([&] {
    std::vector<float> y(3 * 20, -9.0f);
    ExpertMatMul(problem.Job(y), 5, 14);
    for (size_t i = 0; i < 3; ++i) {
      for (size_t r = 0; r < 20; ++r) {
        const bool asked = r >= 5 && r < 14;
        ASSERT_EQ(Bits(y[i * 20 + r]), Bits(asked ? expected[i * 20 + r] : -9.0f));
      }
    }
  });
}

TEST_P(ExpertKinds, ParallelGivesTheSameBitsForAnyNumberOfWorkers) {
  std::vector<Problem> problems;
  uint32_t seed = 200;
  for (size_t n : {1u, 40u, 0u, 3u, 1u, 9u}) {
    problems.emplace_back(GetParam(), 10 + 50 * n, Cols(1 + n), n, seed++);
  }
  std::vector<std::vector<float>> expected;
  for (const Problem& p : problems) expected.push_back(p.Twin());
  for (size_t workers : {1u, 2u, 8u}) {
    auto pool = ThreadPool::Create(workers);
    ASSERT_TRUE(pool);
    std::vector<std::vector<float>> y;
    for (const Problem& p : problems) y.emplace_back(p.n * p.rows, NAN);
    std::vector<ExpertJob> jobs;
    for (size_t i = 0; i < problems.size(); ++i) jobs.push_back(problems[i].Job(y[i]));
    ASSERT_TRUE(ParallelExpertMatMul(**pool, jobs));
    for (size_t i = 0; i < problems.size(); ++i) ExpectSameBits(y[i], expected[i]);
  }
}

// Every nibble at every position, by itself: a swapped nibble or lane shows.
TEST(ExpertMatMul, Mxfp4NibblesAreWhereTheyBelong) {
  for (size_t position = 0; position < 32; ++position) {
    Problem problem(ExpertKind::kMxfp4, 16, 32, 1, 1);
    std::fill(problem.packed.begin(), problem.packed.end(), uint8_t{0});
    std::fill(problem.scales.begin(), problem.scales.end(), uint8_t{128});  // times two
    for (size_t r = 0; r < 16; ++r) {
      problem.packed[1 + r * 16 + position / 2] =
          static_cast<uint8_t>(position % 2 == 0 ? r : r << 4);
    }
    ForEachTarget([&] {
      std::vector<float> y(16);
      ExpertMatMul(problem.Job(y), 0, 16);
      for (size_t r = 0; r < 16; ++r) {
        EXPECT_EQ(y[r], kE2m1[r] * 2 * problem.x[position]) << position;
      }
    });
  }
}

TEST(ExpertMatMul, EveryScaleByteIsDecoded) {
  for (int s = 0; s < 255; ++s) {
    Problem problem(ExpertKind::kMxfp4, 1, 32, 1, 1);
    std::fill(problem.packed.begin(), problem.packed.end(), uint8_t{0});
    problem.packed[1] = 2;  // 1.0 in column 0
    problem.scales[1] = static_cast<uint8_t>(s);
    problem.x[0] = s < 64 ? 0x1p60f : 0x1p-60f;  // keeps the product in range
    const double expected = s < 2 ? 0.0 : std::ldexp(1.0, s - 127) * double{problem.x[0]};
    ForEachTarget([&] {
      std::vector<float> y(1);
      ExpertMatMul(problem.Job(y), 0, 1);
      EXPECT_EQ(y[0], static_cast<float>(expected)) << s;
    });
  }
}

}  // namespace
}  // namespace mk
