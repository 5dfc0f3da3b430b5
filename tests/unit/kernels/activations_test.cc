#include "engine/kernels/activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Dense near zero, and far out on both sides.
std::vector<float> Points(float limit) {
  std::vector<float> points = {0.0f, -0.0f, 0.625f, -0.625f, 0.62499994f, 1e-30f, -1e-20f};
  Random random(12);
  for (int i = 0; i < 20'000; ++i) points.push_back(random.Uniform(-limit, limit));
  for (int i = 0; i < 20'000; ++i) points.push_back(random.Uniform(-2.0f, 2.0f));
  for (float tiny = 1.0f; tiny > 1e-10f; tiny *= 0.9f) {
    points.push_back(tiny);
    points.push_back(-tiny);
  }
  points.push_back(3.0f);  // an odd length
  return points;
}

double Ulps(float actual, double exact) {
  const double scale = std::max(std::fabs(exact), double{std::numeric_limits<float>::min()});
  return std::fabs(double{actual} - exact) / (scale * 0x1p-24);
}

// Largest error of `kernel` in half units of the last place, and that all targets agree.
template <typename Kernel, typename Exact>
void CheckFunction(const std::vector<float>& x, Kernel kernel, Exact exact, double bound) {
  std::vector<float> first;
  ForEachTarget([&] {
    std::vector<float> y(x.size());
    kernel(x, y);
    double worst = 0;
    float worst_at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = Ulps(y[i], exact(double{x[i]}));
      if (!(error <= worst)) {
        worst = error;
        worst_at = x[i];
      }
    }
    EXPECT_LE(worst, bound) << "at " << worst_at;
    if (first.empty()) first = y;
    ExpectSameBits(y, first);
  });
}

TEST(Activations, Exp) {
  CheckFunction(
      Points(87.0f), [](auto& x, auto& y) { Exp(x, y); }, [](double x) { return std::exp(x); }, 3);
}

TEST(Activations, Tanh) {
  CheckFunction(
      Points(12.0f), [](auto& x, auto& y) { Tanh(x, y); }, [](double x) { return std::tanh(x); },
      4);
}

TEST(Activations, Sigmoid) {
  CheckFunction(
      Points(80.0f), [](auto& x, auto& y) { Sigmoid(x, y); },
      [](double x) { return 1 / (1 + std::exp(-x)); }, 5);
}

TEST(Activations, Silu) {
  CheckFunction(
      Points(80.0f), [](auto& x, auto& y) { Silu(x, y); },
      [](double x) { return x / (1 + std::exp(-x)); }, 6);
}

TEST(Activations, LimitsAndSpecialValues) {
  const std::vector<float> x = {-kInf,  -1000.0f, -87.34f, -87.33f, 88.72f,
                                88.73f, 1000.0f,  kInf,    NAN};
  ForEachTarget([&] {
    std::vector<float> y(x.size());
    Exp(x, y);
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_GT(y[3], 0.0f);
    EXPECT_TRUE(std::isfinite(y[4]));
    EXPECT_EQ(y[5], kInf);
    EXPECT_EQ(y[6], kInf);
    EXPECT_EQ(y[7], kInf);
    EXPECT_TRUE(std::isnan(y[8]));
    Sigmoid(x, y);
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_EQ(y[6], 1.0f);
    EXPECT_EQ(y[7], 1.0f);
    EXPECT_TRUE(std::isnan(y[8]));
    Tanh(x, y);
    EXPECT_EQ(y[0], -1.0f);
    EXPECT_EQ(y[1], -1.0f);
    EXPECT_EQ(y[6], 1.0f);
    EXPECT_EQ(y[7], 1.0f);
    EXPECT_TRUE(std::isnan(y[8]));
  });
}

TEST(Activations, SituSaturatesAtItsCaps) {
  Random random(3);
  std::vector<float> g, u;
  for (float size : {0.1f, 1.0f, 4.0f, 25.0f, 1000.0f}) {
    for (int i = 0; i < 501; ++i) {
      g.push_back(random.Normal() * size);
      u.push_back(random.Normal() * size);
    }
  }
  for (SituCaps caps : {SituCaps{}, SituCaps{3.5f, 7.25f}}) {
    std::vector<float> first;
    ForEachTarget([&] {
      std::vector<float> y(g.size());
      Situ(g, u, caps, y);
      for (size_t i = 0; i < g.size(); ++i) {
        const double b = caps.gate, b2 = caps.up;
        const double exact =
            b * std::tanh(g[i] / b) / (1 + std::exp(-double{g[i]})) * b2 * std::tanh(u[i] / b2);
        ASSERT_NEAR(y[i], exact, std::fabs(exact) * 1e-6 + 1e-36) << g[i] << " " << u[i];
        ASSERT_LE(std::fabs(y[i]), caps.gate * caps.up);
      }
      if (first.empty()) first = y;
      ExpectSameBits(y, first);
    });
  }
}

TEST(Activations, GatesFollowTheirEquations) {
  Random random(6);
  const size_t count = 133;
  const std::vector<float> a = random.Normals(count), b = random.Normals(count);
  std::vector<float> rate = random.Normals(count);
  for (float& r : rate) r = std::exp(r);
  ForEachTarget([&] {
    std::vector<float> gated(count), decay(count);
    SigmoidGate(a, b, gated);
    DecayGate(a, b, rate, -5.0f, decay);
    for (size_t i = 0; i < count; ++i) {
      const double gate = double{b[i]} / (1 + std::exp(-double{a[i]}));
      ASSERT_NEAR(gated[i], gate, std::fabs(gate) * 1e-6);
      const double z = double{rate[i]} * (double{a[i]} + double{b[i]});
      const double log_decay = -5.0 / (1 + std::exp(-z));
      // The sum is rounded before it is scaled: relative to the argument.
      ASSERT_NEAR(decay[i], log_decay, std::fabs(log_decay) * 1e-6 * (1 + std::fabs(z)));
      ASSERT_LE(decay[i], 0.0f);
      ASSERT_GE(decay[i], -5.0f);
    }
    std::vector<float> in_place = a;
    SigmoidGate(in_place, b, in_place);
    ExpectSameBits(in_place, gated);
  });
}

}  // namespace
}  // namespace mk
