#include "engine/kernels/matmul.h"

#include <gtest/gtest.h>

#include "engine/parallel/page_buffer.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

// Bytes and scales of a row of activations or weights: max|v| / 127 per group of 32.
struct ByteRow {
  std::vector<float> scales;
  std::vector<int> values;
};

ByteRow ToBytes(const float* row, size_t cols, bool by_product) {
  ByteRow bytes;
  for (size_t first = 0; first < cols; first += 32) {
    float largest = 0;
    for (size_t c = first; c < std::min(cols, first + 32); ++c) {
      largest = std::max(largest, std::fabs(row[c]));
    }
    const float scale = largest / 127.0f;
    bytes.scales.push_back(scale);
    for (size_t c = first; c < std::min(cols, first + 32); ++c) {
      const float q = by_product ? row[c] * (127.0f / largest) : row[c] / scale;
      bytes.values.push_back(static_cast<int>(std::nearbyint(q)));
    }
  }
  return bytes;
}

// Of the weights, and whether activations have two bytes.
struct Form {
  WeightKind kind;
  bool wide = false;
};

// A random matrix, its packed form, and inputs.
struct Problem {
  WeightKind kind;
  size_t rows, cols, n;
  std::vector<float> w, x;
  PageBuffer panels;
  std::vector<int8_t> q8_values;
  std::vector<float> q8_scales;
  std::vector<int32_t> q8_offsets;
  bool wide = false;  // activations of two bytes

  Problem(Form form, size_t r, size_t c, size_t count, uint32_t seed)
      : kind(form.kind), rows(r), cols(c), n(count), wide(form.wide) {
    Random random(seed);
    w = random.Normals(r * c);
    x = random.Normals(count * c);
    const size_t bytes = PackedBytes(kind, r, c);
    panels = std::move(*PageBuffer::Allocate(bytes));
    PackRows(kind, w, 0, r, c, {panels.data(), bytes});
  }

  PackedMatrix packed() const { return {kind, panels.data(), rows, cols}; }
  // Quantises x anew when the matrix needs it.
  MatMulJob Job(std::vector<float>& y) {
    MatMulJob job{packed(), x.data(), cols, y.data(), rows, n};
    if (kind == WeightKind::kQ8) {
      const size_t groups = Q8Groups(cols);
      // The low parts behind the high ones.
      q8_values.assign(2 * n * groups * 32, 99);
      q8_scales.assign(2 * n * groups, NAN);
      q8_offsets.assign(2 * n * groups, -1);
      job.q8.high = {q8_values.data(), q8_scales.data(), q8_offsets.data(), groups, groups};
      if (wide) job.q8.low = job.q8.high.From(n);
      QuantizeRows(x.data(), cols, cols, 0, n, job.q8);
      job.x = nullptr;
    }
    return job;
  }

  // The definition, output by output.
  std::vector<float> Twin() const {
    const FlushDenormals flush;
    std::vector<float> y(n * rows);
    for (size_t i = 0; i < n; ++i) {
      for (size_t r = 0; r < rows; ++r) {
        const float* a = &w[r * cols];
        const float* b = &x[i * cols];
        y[i * rows + r] = kind == WeightKind::kQ8 ? ByteTwin(a, b) : FloatTwin(a, b);
      }
    }
    return y;
  }

  float FloatTwin(const float* a, const float* b) const {
    float total = 0;
    for (size_t c0 = 0; c0 < cols; c0 += 16) {
      float sum = 0;
      for (size_t c = c0; c < std::min(cols, c0 + 16); ++c) {
        // bfloat16 by arithmetic: the float that has eight bits of mantissa, ties to even.
        const float weight = kind == WeightKind::kBf16 ? RoundToEightBits(a[c]) : a[c];
        sum = std::fma(weight, b[c], sum);
      }
      total = total + sum;
    }
    return total;
  }

  static float RoundToEightBits(float v) {
    int exponent;
    const float mantissa = std::frexp(v, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
  }

  float ByteTwin(const float* a, const float* b) const {
    const ByteRow weights = ToBytes(a, cols, false);
    const ByteRow values = ToBytes(b, cols, true);
    std::vector<float> left(b, b + cols);
    for (size_t c = 0; c < cols; ++c) {
      left[c] = std::fma(-static_cast<float>(values.values[c]), values.scales[c / 32], left[c]);
    }
    const ByteRow low = ToBytes(left.data(), cols, true);
    float total = 0;
    for (size_t g = 0; g < weights.scales.size(); ++g) {
      int dot = 0, low_dot = 0;
      for (size_t c = 32 * g; c < std::min(cols, 32 * g + 32); ++c) {
        dot += weights.values[c] * values.values[c];
        low_dot += weights.values[c] * low.values[c];
      }
      total = std::fma(static_cast<float>(dot), weights.scales[g] * values.scales[g], total);
      if (!wide) continue;
      total = std::fma(static_cast<float>(low_dot), weights.scales[g] * low.scales[g], total);
    }
    return total;
  }
};

struct Shape {
  size_t rows, cols, n;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (size_t n = 1; n <= 14; ++n) shapes.push_back({83, 301, n});
  for (size_t n : {24, 25, 64, 65}) shapes.push_back({131, 517, n});
  for (size_t rows : {1, 15, 16, 17, 31, 64, 65}) shapes.push_back({rows, 257, 3});
  for (size_t cols : {1, 2, 16, 255, 256, 257, 512, 513}) shapes.push_back({33, cols, 5});
  return shapes;
}

class MatMulKinds : public testing::TestWithParam<Form> {};

TEST_P(MatMulKinds, EqualsItsDefinitionOnEveryTarget) {
  uint32_t seed = 1;
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.cols << " n=" << shape.n);
    Problem problem(GetParam(), shape.rows, shape.cols, shape.n, seed++);
    const std::vector<float> expected = problem.Twin();
    ForEachTarget([&] {
      std::vector<float> y(shape.n * shape.rows, NAN);
      MatMul(problem.Job(y));
      ExpectSameBits(y, expected);
    });
  }
}

TEST_P(MatMulKinds, IsCloseToDoublePrecision) {
  Problem problem(GetParam(), 70, 3000, 9, 5);
  std::vector<float> y(9 * 70);
  MatMul(problem.Job(y));
  for (size_t i = 0; i < 9; ++i) {
    for (size_t r = 0; r < 70; ++r) {
      double sum = 0, magnitude = 0;
      for (size_t c = 0; c < 3000; ++c) {
        const double product = double{problem.w[r * 3000 + c]} * double{problem.x[i * 3000 + c]};
        sum += product;
        magnitude += std::fabs(product);
      }
      // f32: 16 roundings in a chain and 188 between chains, far from all in one direction. The
      // others: half a unit of a weight, and of an activation, each far from all in one direction.
      const double allowed = GetParam().kind == WeightKind::kF32 ? 1e-6 : 1e-3;
      EXPECT_NEAR(y[i * 70 + r], sum, magnitude * allowed);
    }
  }
}

TEST_P(MatMulKinds, WritesNothingBesideItsOutputs) {
  // Rows of y and x lie in wider rows; the rest keeps its value.
  for (size_t n : {1u, 5u, 13u}) {
    Problem problem(GetParam(), 37, 300, n, 11);
    const std::vector<float> expected = problem.Twin();
    const size_t ldx = 311, ldy = 41;
    std::vector<float> x(n * ldx, NAN), y(n * ldy, -7.0f);
    for (size_t i = 0; i < n; ++i) {
      std::copy_n(problem.x.data() + i * 300, 300, x.data() + i * ldx);
    }
    ForEachTarget([&] {
      std::fill(y.begin(), y.end(), -7.0f);
      std::vector<float> unused;
      MatMulJob job = problem.Job(unused);
      job.x = x.data();
      job.ldx = ldx;
      job.y = y.data() + 2;
      job.ldy = ldy;
      MatMul(job);
      for (size_t i = 0; i < n; ++i) {
        for (size_t c = 0; c < ldy; ++c) {
          const float want = c < 2 || c >= 39 ? -7.0f : expected[i * 37 + c - 2];
          ASSERT_EQ(Bits(y[i * ldy + c]), Bits(want)) << i << " " << c;
        }
      }
    });
  }
}

TEST_P(MatMulKinds, BatchEqualsSingleRows) {
  Problem problem(GetParam(), 200, 700, 65, 3);
  std::vector<float> batch(65 * 200), single(65 * 200);
  const MatMulJob all = problem.Job(batch);
  MatMul(all);
  for (size_t i = 0; i < 65; ++i) {
    MatMulJob one = all;
    one.x = problem.x.data() + i * 700;
    one.q8 = all.q8.From(i);
    one.y = single.data() + i * 200;
    one.n = 1;
    MatMul(one);
  }
  EXPECT_EQ(std::memcmp(batch.data(), single.data(), batch.size() * 4), 0);
}

TEST(MatMul, PackRowsStacksMatricesAndRowRangeTakesThemApart) {
  Random random(17);
  const std::vector<float> a = random.Normals(32 * 50), b = random.Normals(21 * 50);
  const std::vector<float> x = random.Normals(50);
  const size_t bytes = PackedBytes(WeightKind::kF32, 53, 50);
  PageBuffer panels = std::move(*PageBuffer::Allocate(bytes));
  PackRows(WeightKind::kF32, b, 32, 21, 50, {panels.data(), bytes});
  PackRows(WeightKind::kF32, a, 0, 32, 50, {panels.data(), bytes});
  const PackedMatrix both{WeightKind::kF32, panels.data(), 53, 50};
  std::vector<float> all(53), lower(21);
  MatMul({both, x.data(), 50, all.data(), 53, 1});
  MatMul({RowRange(both, 32, 21), x.data(), 50, lower.data(), 21, 1});
  for (size_t r = 0; r < 53; ++r) {
    const float* row = r < 32 ? a.data() + r * 50 : b.data() + (r - 32) * 50;
    double sum = 0;
    for (size_t c = 0; c < 50; ++c) sum += double{row[c]} * double{x[c]};
    EXPECT_NEAR(all[r], sum, 1e-5);
    if (r >= 32) {
      EXPECT_EQ(lower[r - 32], all[r]);
    }
  }
}

TEST(ParallelMatMul, SameBitsForAnyNumberOfWorkers) {
  // A mix of sizes: one job far larger than the rest, tiny ones, and one without rows of x.
  std::vector<Problem> problems;
  problems.emplace_back(Form{WeightKind::kF32}, 1000, 513, 30, 21);
  problems.emplace_back(Form{WeightKind::kQ8}, 16, 40, 30, 22);
  problems.emplace_back(Form{WeightKind::kQ8}, 600, 300, 1, 23);
  problems.emplace_back(Form{WeightKind::kF32}, 7, 1, 2, 24);
  problems.emplace_back(Form{WeightKind::kBf16}, 50, 60, 0, 25);
  problems.emplace_back(Form{WeightKind::kBf16}, 90, 800, 500, 26);
  problems.emplace_back(Form{WeightKind::kQ8}, 300, 640, 70, 27);
  std::vector<std::vector<float>> expected;
  for (const Problem& p : problems) expected.push_back(p.Twin());
  for (size_t workers : {1u, 2u, 8u}) {
    auto pool = ThreadPool::Create(workers);
    ASSERT_TRUE(pool);
    std::vector<std::vector<float>> y;
    for (const Problem& p : problems) y.emplace_back(p.n * p.rows, NAN);
    std::vector<MatMulJob> jobs;
    for (size_t i = 0; i < problems.size(); ++i) jobs.push_back(problems[i].Job(y[i]));
    ASSERT_TRUE(ParallelMatMul(**pool, jobs));
    for (size_t i = 0; i < problems.size(); ++i) ExpectSameBits(y[i], expected[i]);
  }
}

TEST(ParallelMatMul, ClearsTheOutputOfAMatrixWithoutColumns) {
  std::vector<float> y(6, 3.0f);
  const MatMulJob job{{WeightKind::kF32, nullptr, 3, 0}, nullptr, 0, y.data(), 3, 2};
  auto pool = ThreadPool::Create(2);
  ASSERT_TRUE(ParallelMatMul(**pool, {&job, 1}));
  for (float v : y) EXPECT_EQ(v, 0.0f);
  ASSERT_TRUE(ParallelMatMul(**pool, {}));
}

TEST_P(MatMulKinds, NonFiniteInputsReachTheOutput) {
  Problem problem(GetParam(), 20, 30, 2, 9);
  problem.x[30 + 7] = NAN;
  ForEachTarget([&] {
    std::vector<float> y(40);
    MatMul(problem.Job(y));
    for (size_t r = 0; r < 20; ++r) {
      EXPECT_TRUE(std::isfinite(y[r]));
      EXPECT_TRUE(std::isnan(y[20 + r]));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, MatMulKinds,
                         testing::Values(Form{WeightKind::kF32}, Form{WeightKind::kBf16},
                                         Form{WeightKind::kQ8}, Form{WeightKind::kQ8, true}));

}  // namespace
}  // namespace mk
