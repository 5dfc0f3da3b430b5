#include "engine/kernels/matmul.h"

#include <gtest/gtest.h>

#include "engine/parallel/page_buffer.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

// A random matrix, its packed form, and inputs.
struct Problem {
  size_t rows, cols, n;
  std::vector<float> w, x;
  PageBuffer panels;

  Problem(size_t r, size_t c, size_t count, uint32_t seed) : rows(r), cols(c), n(count) {
    Random random(seed);
    w = random.Normals(r * c);
    x = random.Normals(count * c);
    panels = std::move(*PageBuffer::Allocate(PackedSize(r, c) * sizeof(float)));
    PackRows(w, 0, r, c, panels.floats());
  }

  PackedMatrix packed() const { return {panels.floats().data(), rows, cols}; }
  MatMulJob Job(std::vector<float>& y) const {
    return {packed(), x.data(), cols, y.data(), rows, n};
  }

  // The definition, output by output.
  std::vector<float> Twin() const {
    const FlushDenormals flush;
    std::vector<float> y(n * rows);
    for (size_t i = 0; i < n; ++i) {
      for (size_t r = 0; r < rows; ++r) {
        float total = 0;
        for (size_t c0 = 0; c0 < cols; c0 += 256) {
          float sum = 0;
          for (size_t c = c0; c < std::min(cols, c0 + 256); ++c) {
            sum = std::fma(w[r * cols + c], x[i * cols + c], sum);
          }
          total = c0 == 0 ? sum : total + sum;
        }
        y[i * rows + r] = total;
      }
    }
    return y;
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

TEST(MatMul, EqualsItsDefinitionOnEveryTarget) {
  uint32_t seed = 1;
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.cols << " n=" << shape.n);
    const Problem problem(shape.rows, shape.cols, shape.n, seed++);
    const std::vector<float> expected = problem.Twin();
    ForEachTarget([&] {
      std::vector<float> y(shape.n * shape.rows, NAN);
      MatMul(problem.Job(y));
      ExpectSameBits(y, expected);
    });
  }
}

TEST(MatMul, IsCloseToDoublePrecision) {
  const Problem problem(70, 3000, 9, 5);
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
      // 256 roundings in a block and 12 between blocks, far from all in one direction.
      EXPECT_NEAR(y[i * 70 + r], sum, magnitude * 2e-6);
    }
  }
}

TEST(MatMul, WritesNothingBesideItsOutputs) {
  // Rows of y and x lie in wider rows; the rest keeps its value.
  for (size_t n : {1u, 5u, 13u}) {
    const Problem problem(37, 300, n, 11);
    const std::vector<float> expected = problem.Twin();
    const size_t ldx = 311, ldy = 41;
    std::vector<float> x(n * ldx, NAN), y(n * ldy, -7.0f);
    for (size_t i = 0; i < n; ++i) {
      std::copy_n(problem.x.data() + i * 300, 300, x.data() + i * ldx);
    }
    ForEachTarget([&] {
      std::fill(y.begin(), y.end(), -7.0f);
      MatMul({problem.packed(), x.data(), ldx, y.data() + 2, ldy, n});
      for (size_t i = 0; i < n; ++i) {
        for (size_t c = 0; c < ldy; ++c) {
          const float want = c < 2 || c >= 39 ? -7.0f : expected[i * 37 + c - 2];
          ASSERT_EQ(Bits(y[i * ldy + c]), Bits(want)) << i << " " << c;
        }
      }
    });
  }
}

TEST(MatMul, BatchEqualsSingleRows) {
  const Problem problem(200, 700, 65, 3);
  std::vector<float> batch(65 * 200), single(65 * 200);
  MatMul(problem.Job(batch));
  for (size_t i = 0; i < 65; ++i) {
    MatMul({problem.packed(), problem.x.data() + i * 700, 700, single.data() + i * 200, 200, 1});
  }
  EXPECT_EQ(std::memcmp(batch.data(), single.data(), batch.size() * 4), 0);
}

TEST(MatMul, PackRowsStacksMatricesAndRowRangeTakesThemApart) {
  Random random(17);
  const std::vector<float> a = random.Normals(32 * 50), b = random.Normals(21 * 50);
  const std::vector<float> x = random.Normals(50);
  PageBuffer panels = std::move(*PageBuffer::Allocate(PackedSize(53, 50) * 4));
  PackRows(b, 32, 21, 50, panels.floats());
  PackRows(a, 0, 32, 50, panels.floats());
  const PackedMatrix both{panels.floats().data(), 53, 50};
  std::vector<float> all(53), lower(21);
  MatMul({both, x.data(), 50, all.data(), 53, 1});
  MatMul({RowRange(both, 32, 21), x.data(), 50, lower.data(), 21, 1});
  for (size_t r = 0; r < 53; ++r) {
    const float* row = r < 32 ? a.data() + r * 50 : b.data() + (r - 32) * 50;
    float sum = 0;
    for (size_t c = 0; c < 50; ++c) sum = std::fma(row[c], x[c], sum);
    EXPECT_EQ(all[r], sum);
    if (r >= 32) {
      EXPECT_EQ(lower[r - 32], sum);
    }
  }
}

TEST(ParallelMatMul, SameBitsForAnyNumberOfWorkers) {
  // A mix of sizes: one job far larger than the rest, tiny ones, and one without rows of x.
  std::vector<Problem> problems;
  problems.emplace_back(1000, 513, 30, 21);
  problems.emplace_back(16, 40, 30, 22);
  problems.emplace_back(600, 300, 1, 23);
  problems.emplace_back(7, 1, 2, 24);
  problems.emplace_back(50, 60, 0, 25);
  problems.emplace_back(90, 800, 500, 26);
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
  const MatMulJob job{{nullptr, 3, 0}, nullptr, 0, y.data(), 3, 2};
  auto pool = ThreadPool::Create(2);
  ASSERT_TRUE(ParallelMatMul(**pool, {&job, 1}));
  for (float v : y) EXPECT_EQ(v, 0.0f);
  ASSERT_TRUE(ParallelMatMul(**pool, {}));
}

TEST(MatMul, NonFiniteInputsReachTheOutput) {
  Problem problem(20, 30, 2, 9);
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

}  // namespace
}  // namespace mk
