#include "engine/kernels/expert_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/format/mxfp4.h"
#include "engine/kernels/nibble_panels.h"
#include "engine/kernels/vq1_matmul.h"
#include "engine/parallel/page_buffer.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

// What a matrix is multiplied with: its kind, and whether activations are bytes.
struct Form {
  ExpertKind kind;
  bool bytes;
};

// A random matrix, made in file layout, and inputs.
struct Problem {
  ExpertKind kind;
  bool bytes;
  size_t rows, cols, n;
  std::vector<uint8_t> packed, scales;  // of the file
  std::vector<uint8_t> panels;          // one byte off alignment
  std::vector<float> values, x;
  float smax = 0.37f;
  PageBuffer codebook;
  size_t stages = 1;  // VQ1
  std::vector<int8_t> q8_values;
  std::vector<float> q8_scales;
  std::vector<int32_t> q8_offsets;

  Problem(Form form, size_t r, size_t c, size_t count, uint32_t seed)
      : kind(form.kind), bytes(form.bytes), rows(r), cols(c), n(count) {
    Random random(seed);
    x = random.Normals(n * cols);
    if (kind == ExpertKind::kF32) values = random.Normals(rows * cols);
    packed.resize(kind == ExpertKind::kVq1 ? rows * cols / 16 : rows * cols / 2);
    for (uint8_t& b : packed) b = random.Byte();
    scales.resize(rows * cols / 32);
    for (uint8_t& s : scales) {
      s = kind == ExpertKind::kMxfp4 ? static_cast<uint8_t>(118 + random.Byte() % 16)
                                     : random.Byte();
    }
    SetCodebooks(random);
    Prepare();
  }

  void SetCodebooks(Random& random) {
    codebook = std::move(*PageBuffer::Allocate(stages * kVq1CodebookFloats * 4));
    for (size_t s = 0; s < stages; ++s) {
      float* own = &codebook.floats()[s * kVq1CodebookFloats];
      for (size_t i = 0; i < 256 * 16; ++i) own[i] = random.Normal();
      CompleteVq1Codebook(own);
    }
  }
  // VQ1: with so many codebooks.
  void SetStages(size_t count, uint32_t seed) {
    Random random(seed);
    stages = count;
    packed.resize(rows * cols / 16 * stages);
    for (uint8_t& b : packed) b = random.Byte();
    SetCodebooks(random);
    Prepare();
  }

  // After a change of what the file holds, or of x.
  void Prepare() {
    if (nibbles()) {
      panels.assign(NibbleMatrixBytes(rows, cols) + 1, 0xee);
      PackNibblePanels(rows, cols, packed.data(), scales.data(), std::span(panels).subspan(1));
    } else {
      panels.assign(1, 0);
      panels.insert(panels.end(), packed.begin(), packed.end());
    }
    q8_values.assign(n * stride() * 32, 55);
    q8_scales.assign(n * stride(), NAN);
    q8_offsets.assign(n * stride(), 1 << 30);
    if (bytes) QuantizeRows(x.data(), cols, cols, 0, n, Bytes());
  }

  size_t stride() const { return cols / 32 + 1; }  // groups between rows, one more than there are
  Q8Rows Bytes() {
    return {q8_values.data(), q8_scales.data(), q8_offsets.data(), cols / 32, stride()};
  }
  ExpertMatrix matrix() const {
    return {kind,  rows, cols, panels.data() + 1, smax, values.data(), codebook.floats().data(),
            stages};
  }
  ExpertJob Job(std::vector<float>& y) {
    ExpertJob job{matrix(), x.data(), cols, y.data(), rows, n};
    if (bytes) {
      job.x = nullptr;
      job.q8 = Bytes();
    }
    return job;
  }

  float Nibble(size_t r, size_t c) const {
    const uint8_t byte = packed[(r * cols + c) / 2];
    return kE2m1[c % 2 == 0 ? byte & 15 : byte >> 4];
  }
  float GroupScale(size_t r, size_t g) const {
    const uint8_t s = scales[r * cols / 32 + g];
    if (kind == ExpertKind::kMxfp4 && s < 2) return 0.0f;
    return kind == ExpertKind::kMxfp4 ? DecodeE8m0(s) : DecodeSquareScale(s, smax);
  }
  // Weight as a float, for kinds of one product per weight.
  float Plain(size_t r, size_t c) const {
    if (kind == ExpertKind::kF32) return values[r * cols + c];
    return codebook.floats()[size_t{packed[(r * cols + c) / 16]} * 16 + c % 16];
  }
  bool nibbles() const { return kind == ExpertKind::kMxfp4 || kind == ExpertKind::kMxfp4Sq; }
  double Weight(size_t r, size_t c) const {
    if (!nibbles()) return Plain(r, c);
    return double{Nibble(r, c)} * double{GroupScale(r, c / 32)};
  }

  float Vq1Twin(size_t r, const float* in) const {
    float total = 0;
    for (size_t byte = 0; byte < cols / 16 * stages; ++byte) {
      const size_t entry = packed[r * (cols / 16 * stages) + byte];
      const float* w = &codebook.floats()[byte % stages * kVq1CodebookFloats + entry * 16];
      float sum = 0;
      for (size_t j = 0; j < 16; ++j) sum = std::fma(w[j], in[byte / stages * 16 + j], sum);
      total += sum;
    }
    return total;
  }

  // The definition, output by output.
  float Twin(size_t r, size_t i) const {
    const float* in = x.data() + i * cols;
    if (kind == ExpertKind::kVq1) return Vq1Twin(r, in);
    if (kind == ExpertKind::kF32) {
      float lanes[16] = {};
      for (size_t c = 0; c < cols; ++c) lanes[c % 16] = std::fma(Plain(r, c), in[c], lanes[c % 16]);
      return TreeSum(lanes);
    }
    float total = 0;
    for (size_t g = 0; g < cols / 32; ++g) {
      const float half = GroupScale(r, g) * 0.5f;
      float sum = 0;
      int dot = 0;
      for (size_t c = g * 32; c < g * 32 + 32; ++c) {
        sum = std::fma(2 * Nibble(r, c), in[c], sum);
        dot += static_cast<int>(2 * Nibble(r, c)) * q8_values[i * stride() * 32 + c];
      }
      total = bytes ? std::fma(static_cast<float>(dot), half * q8_scales[i * stride() + g], total)
                    : std::fma(sum, half, total);
    }
    return total;
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

class ExpertKinds : public testing::TestWithParam<Form> {
 protected:
  // The smallest step in columns, and an odd one for F32.
  size_t Cols(size_t groups) const {
    switch (GetParam().kind) {
      case ExpertKind::kF32:
        return groups * 32 - 5;
      case ExpertKind::kVq1:
        return groups * 32 - 16;
      default:
        return groups * 32;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, ExpertKinds,
    testing::Values(Form{ExpertKind::kF32, false}, Form{ExpertKind::kMxfp4, false},
                    Form{ExpertKind::kMxfp4Sq, false}, Form{ExpertKind::kVq1, false},
                    Form{ExpertKind::kMxfp4, true}, Form{ExpertKind::kMxfp4Sq, true}));

TEST_P(ExpertKinds, EqualsItsDefinitionOnEveryTarget) {
  uint32_t seed = 100;
  for (size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 64, 65}) {
    for (size_t rows : {1u, 7u, 22u, 80u}) {
      for (size_t groups : {1u, 4u, 5u}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << groups << " groups, n=" << n);
        Problem problem(GetParam(), rows, Cols(groups), n, seed++);
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
  Problem problem(GetParam(), 40, Cols(30), 3, 77);
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
      EXPECT_NEAR(y[i * 40 + r], sum, magnitude * (GetParam().bytes ? 2e-3 : 1e-6));
    }
  }
}

TEST_P(ExpertKinds, BatchEqualsSingleRows) {
  Problem problem(GetParam(), 33, Cols(4), 65, 55);
  std::vector<float> batch(65 * 33), single(65 * 33);
  const ExpertJob all = problem.Job(batch);
  ExpertMatMul(all, 0, 33);
  for (size_t i = 0; i < 65; ++i) {
    ExpertJob one = all;
    one.x = problem.x.data() + i * problem.cols;
    if (GetParam().bytes) one.q8 = all.q8.From(i);
    one.y = single.data() + i * 33;
    one.n = 1;
    ExpertMatMul(one, 0, 33);
  }
  EXPECT_EQ(std::memcmp(batch.data(), single.data(), batch.size() * 4), 0);
}

TEST_P(ExpertKinds, WritesOnlyTheRowsAskedFor) {
  Problem problem(GetParam(), 60, Cols(2), 3, 66);
  const std::vector<float> expected = problem.Twin();
  ForEachTarget([&] {
    std::vector<float> y(3 * 60, -9.0f);
    ExpertMatMul(problem.Job(y), 16, 43);
    for (size_t i = 0; i < 3; ++i) {
      for (size_t r = 0; r < 60; ++r) {
        const bool asked = r >= 16 && r < 43;
        ASSERT_EQ(Bits(y[i * 60 + r]), Bits(asked ? expected[i * 60 + r] : -9.0f));
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
    for (Problem& p : problems) y.emplace_back(p.n * p.rows, NAN);
    std::vector<ExpertJob> jobs;
    for (size_t i = 0; i < problems.size(); ++i) jobs.push_back(problems[i].Job(y[i]));
    ASSERT_TRUE(ParallelExpertMatMul(**pool, jobs));
    for (size_t i = 0; i < problems.size(); ++i) ExpectSameBits(y[i], expected[i]);
  }
}

// Every nibble at every position, by itself: a swapped nibble or lane shows.
TEST(ExpertMatMul, Mxfp4NibblesAreWhereTheyBelong) {
  for (const bool bytes : {false, true}) {
    for (size_t position = 0; position < 32; ++position) {
      Problem problem({ExpertKind::kMxfp4, bytes}, 16, 32, 1, 1);
      std::fill(problem.packed.begin(), problem.packed.end(), uint8_t{0});
      std::fill(problem.scales.begin(), problem.scales.end(), uint8_t{128});  // times two
      for (size_t r = 0; r < 16; ++r) {
        problem.packed[r * 16 + position / 2] =
            static_cast<uint8_t>(position % 2 == 0 ? r : r << 4);
      }
      for (size_t c = 0; c < 32; ++c) problem.x[c] = static_cast<float>(c) - 20.5f;
      problem.x[position] = 127.0f;  // the scale of the bytes is 1
      problem.Prepare();
      ForEachTarget([&] {
        std::vector<float> y(16);
        ExpertMatMul(problem.Job(y), 0, 16);
        for (size_t r = 0; r < 16; ++r) EXPECT_EQ(y[r], kE2m1[r] * 2 * 127.0f) << position;
      });
    }
  }
}

TEST(ExpertMatMul, EveryScaleByteIsDecoded) {
  for (const bool bytes : {false, true}) {
    for (int s = 0; s < 255; ++s) {
      Problem problem({ExpertKind::kMxfp4, bytes}, 1, 32, 1, 1);
      std::fill(problem.packed.begin(), problem.packed.end(), uint8_t{0});
      problem.packed[0] = 2;  // 1.0 in column 0
      problem.scales[0] = static_cast<uint8_t>(s);
      std::fill(problem.x.begin(), problem.x.end(), 0.0f);
      problem.x[0] = 127.0f * (s < 64 ? 0x1p60f : 0x1p-60f);  // keeps the product in range
      problem.Prepare();
      const double expected = s < 2 ? 0.0 : std::ldexp(1.0, s - 127) * double{problem.x[0]};
      ForEachTarget([&] {
        std::vector<float> y(1);
        ExpertMatMul(problem.Job(y), 0, 1);
        EXPECT_EQ(y[0], static_cast<float>(expected)) << s;
      });
    }
  }
}

TEST(ExpertMatMul, NanScalesOfBytesReachTheOutput) {
  for (const ExpertKind kind : {ExpertKind::kMxfp4, ExpertKind::kMxfp4Sq}) {
    Problem problem({kind, true}, 20, 96, 2, 9);
    problem.q8_scales[problem.stride() + 1] = NAN;
    ForEachTarget([&] {
      std::vector<float> y(40);
      ExpertMatMul(problem.Job(y), 0, 20);
      for (size_t r = 0; r < 20; ++r) {
        EXPECT_TRUE(std::isfinite(y[r]));
        EXPECT_TRUE(std::isnan(y[20 + r]));
      }
    });
  }
}

// Whatever the form, with and without tables made before, for few rows and many.
TEST(ExpertMatMul, Vq1FormsGiveTheSameBits) {
  uint32_t seed = 300;
  for (const size_t n : {1u, 5u, 16u, 37u}) {
    for (const size_t rows : {3u, 16u, 90u, 1100u}) {
      for (const size_t cols : {16u, 48u, 64u, 304u}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", n=" << n);
        Problem problem({ExpertKind::kVq1, false}, rows, cols, n, seed++);
        problem.SetStages(1 + seed % 3, seed);
        const std::vector<float> expected = problem.Twin();
        ForEachTarget([&] {
          const FlushDenormals flush;
          for (const Vq1Form form : {Vq1Form::kGather, Vq1Form::kTables, Vq1Form::kLanes}) {
            std::vector<float> y(n * rows, NAN);
            Vq1MatMulAs(form, problem.Job(y), 0, rows);
            ExpectSameBits(y, expected);
          }
        });
      }
    }
  }
}

// Inputs of an expert are some of those that tables were made of, in an order of their own.
TEST(ExpertMatMul, Vq1TablesAreSharedByRow) {
  constexpr size_t kRows = 40, kCols = 320, kAll = 6;
  const uint32_t chosen[] = {4, 0, 3};
  Problem problem({ExpertKind::kVq1, false}, kRows, kCols, kAll, 7);
  problem.SetStages(2, 8);
  const std::vector<float> all = problem.Twin();
  ForEachTarget([&] {
    const FlushDenormals flush;
    constexpr size_t kTables = Vq1TableFloats(kCols, 2);
    std::vector<float> tables(kAll * kTables), y(3 * kRows);
    for (size_t i = 0; i < kAll; ++i) {
      BuildVq1Tables(problem.codebook.floats().data(), 2, &problem.x[i * kCols], kCols,
                     &tables[i * kTables]);
    }
    ExpertJob job = problem.Job(y);
    job.x = nullptr;  // not looked at
    job.n = 3;
    job.tables = {tables.data(), chosen};
    ExpertMatMul(job, 0, kRows);
    for (size_t i = 0; i < 3; ++i) {
      for (size_t r = 0; r < kRows; ++r) {
        ASSERT_EQ(Bits(y[i * kRows + r]), Bits(all[chosen[i] * kRows + r]));
      }
    }
  });
}

}  // namespace
}  // namespace mk
