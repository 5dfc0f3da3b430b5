#include "engine/kernels/vector_ops.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr size_t kLengths[] = {0, 1, 2, 15, 16, 17, 31, 32, 100, 1024, 7168, 7171};

float TwinDot(const std::vector<float>& a, const std::vector<float>& b) {
  float lanes[16] = {};
  for (size_t i = 0; i < a.size(); ++i) lanes[i % 16] = std::fma(a[i], b[i], lanes[i % 16]);
  return TreeSum(lanes);
}

float TwinSum(const std::vector<float>& a) {
  float lanes[16] = {};
  for (size_t i = 0; i < a.size(); ++i) lanes[i % 16] = lanes[i % 16] + a[i];
  return TreeSum(lanes);
}

TEST(VectorOps, SumsFollowTheirDefinition) {
  for (size_t length : kLengths) {
    SCOPED_TRACE(length);
    Random random(static_cast<uint32_t>(length));
    const std::vector<float> a = random.Normals(length), b = random.Normals(length);
    double exact = 0, magnitude = 0;
    for (size_t i = 0; i < length; ++i) {
      exact += double{a[i]} * double{b[i]};
      magnitude += std::fabs(double{a[i]} * double{b[i]});
    }
    float largest = -kInf;
    for (float v : a) largest = std::max(largest, v);
    ForEachTarget([&] {
      EXPECT_EQ(Bits(Dot(a, b)), Bits(TwinDot(a, b)));
      EXPECT_EQ(Bits(SumSquares(a)), Bits(TwinDot(a, a)));
      EXPECT_EQ(Bits(Sum(a)), Bits(TwinSum(a)));
      EXPECT_EQ(Max(a), largest);
      EXPECT_NEAR(Dot(a, b), exact, magnitude * 2e-6);
    });
  }
}

TEST(VectorOps, ElementwiseOperationsRoundOnce) {
  for (size_t length : kLengths) {
    Random random(static_cast<uint32_t>(length) + 1);
    const std::vector<float> a = random.Normals(length), b = random.Normals(length);
    ForEachTarget([&] {
      std::vector<float> axpy = b, scale(length), add(length), product(length);
      Axpy(0.3f, a, axpy);
      Scale(0.3f, a, scale);
      Add(a, b, add);
      Multiply(a, b, product);
      for (size_t i = 0; i < length; ++i) {
        ASSERT_EQ(axpy[i], std::fma(0.3f, a[i], b[i]));
        ASSERT_EQ(scale[i], 0.3f * a[i]);
        ASSERT_EQ(add[i], a[i] + b[i]);
        ASSERT_EQ(product[i], a[i] * b[i]);
      }
    });
  }
}

TEST(VectorOps, RmsNormFollowsItsDefinition) {
  for (size_t length : {1u, 16u, 37u, 1024u}) {
    for (float size : {1.0f, 1e-4f, 1e4f}) {  // epsilon matters, does not
      Random random(static_cast<uint32_t>(length));
      std::vector<float> x = random.Normals(length), w = random.Normals(length);
      for (float& v : x) v *= size;
      double squares = 0;
      for (float v : x) squares += double{v} * double{v};
      const float inverse = 1.0f / std::sqrt(TwinDot(x, x) / static_cast<float>(length) + 1e-5f);
      ForEachTarget([&] {
        std::vector<float> y(length);
        const float sum = RmsNorm(x, w, 1e-5f, y);
        EXPECT_EQ(Bits(sum), Bits(TwinDot(x, x)));
        for (size_t i = 0; i < length; ++i) {
          ASSERT_EQ(Bits(y[i]), Bits(x[i] * inverse * w[i]));
          const double exact =
              double{x[i]} * double{w[i]} / std::sqrt(squares / static_cast<double>(length) + 1e-5);
          ASSERT_NEAR(y[i], exact, std::fabs(exact) * 1e-6);
        }
        std::vector<float> in_place = x;
        RmsNorm(in_place, w, 1e-5f, in_place);
        ExpectSameBits(in_place, y);
      });
    }
  }
}

TEST(VectorOps, RmsNormRowsKeepsStridesAndReportsNonFiniteRows) {
  Random random(4);
  std::vector<float> x = random.Normals(3 * 40), w = random.Normals(33), y(3 * 35, -1.0f);
  EXPECT_TRUE(RmsNormRows(x.data(), 40, 3, w, 1e-5f, y.data(), 35));
  for (size_t i = 0; i < 3; ++i) {
    std::vector<float> row(33);
    RmsNorm(std::span(x).subspan(i * 40, 33), w, 1e-5f, row);
    ExpectSameBits(std::span(y).subspan(i * 35, 33), row);
    EXPECT_EQ(y[i * 35 + 34], -1.0f);
  }
  for (float bad : {NAN, kInf, -kInf}) {
    std::vector<float> broken = x;
    broken[40 + 7] = bad;
    EXPECT_FALSE(RmsNormRows(broken.data(), 40, 3, w, 1e-5f, y.data(), 35));
    broken = x;
    broken[40 + 33] = bad;  // beyond the row
    EXPECT_TRUE(RmsNormRows(broken.data(), 40, 3, w, 1e-5f, y.data(), 35));
  }
}

TEST(VectorOps, L2NormalizeHasBothEpsilons) {
  Random random(8);
  for (float size : {1.0f, 1e-3f, 1e-15f}) {
    std::vector<float> u = random.Normals(100);
    for (float& v : u) v *= size;
    double squares = 0;
    for (float v : u) squares += double{v} * double{v};
    std::vector<float> y(100);
    L2Normalize(u, L2Epsilon::kMax, 0.25f, y);
    const double by_max = 0.25 / std::max(std::sqrt(squares), 1e-12);
    for (size_t i = 0; i < 100; ++i) {
      ASSERT_NEAR(y[i], u[i] * by_max, std::fabs(u[i] * by_max) * 1e-6);
    }
    L2Normalize(u, L2Epsilon::kRoot, 1.0f, y);
    const double by_root = 1.0 / std::sqrt(squares + 1e-6);
    for (size_t i = 0; i < 100; ++i) {
      ASSERT_NEAR(y[i], u[i] * by_root, std::fabs(u[i] * by_root) * 1e-6);
    }
  }
  std::vector<float> zero(20, 0.0f);
  L2Normalize(zero, L2Epsilon::kMax, 1.0f, zero);
  for (float v : zero) EXPECT_EQ(v, 0.0f);
  for (L2Epsilon epsilon : {L2Epsilon::kMax, L2Epsilon::kRoot}) {
    std::vector<float> bad(20, 1.0f);
    bad[7] = NAN;
    L2Normalize(bad, epsilon, 1.0f, bad);
    for (float v : bad) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(VectorOps, SoftmaxSumsToOneAndAgreesOnAllTargets) {
  for (size_t length : {1u, 2u, 15u, 16u, 17u, 300u}) {
    for (float spread : {1.0f, 30.0f, 200.0f}) {
      Random random(static_cast<uint32_t>(length));
      std::vector<float> x = random.Normals(length);
      for (float& v : x) v = v * spread - 1000.0f;
      double max = -1e30, total = 0;
      for (float v : x) max = std::max(max, double{v});
      for (float v : x) total += std::exp(double{v} - max);
      std::vector<float> first;
      ForEachTarget([&] {
        std::vector<float> y = x;
        const float sum = Softmax(y);
        EXPECT_NEAR(sum, total, total * 1e-6);
        for (size_t i = 0; i < length; ++i) {
          const double exact = std::exp(double{x[i]} - max) / total;
          ASSERT_NEAR(y[i], exact, exact * 2e-6 + 1e-37);
        }
        if (first.empty()) first = y;
        ExpectSameBits(y, first);
      });
    }
  }
}

TEST(VectorOps, SoftmaxEdges) {
  ForEachTarget([&] {
    std::vector<float> none;
    EXPECT_EQ(Softmax(none), 0.0f);
    std::vector<float> masked = {-kInf, 1.0f, -kInf};
    EXPECT_EQ(Softmax(masked), 1.0f);
    EXPECT_EQ(masked, (std::vector<float>{0.0f, 1.0f, 0.0f}));
    std::vector<float> all(20, -kInf);
    EXPECT_TRUE(std::isnan(Softmax(all)));
    for (float v : all) EXPECT_TRUE(std::isnan(v));
    std::vector<float> tile(20, -kInf);
    EXPECT_EQ(ExpSum(tile, -kInf), 0.0f);
    for (float v : tile) EXPECT_EQ(v, 0.0f);
    for (size_t place : {0u, 5u, 18u}) {
      std::vector<float> bad(19, 1.0f);
      bad[place] = NAN;
      EXPECT_TRUE(std::isnan(Softmax(bad)));
    }
    std::vector<float> tail = {0.5f, 1.5f, 2.5f};
    const double sum = ExpSum(tail, 2.5f);
    EXPECT_NEAR(sum, 1.0 + std::exp(-1.0) + std::exp(-2.0), 1e-6);
  });
}

}  // namespace
}  // namespace mk
