// Pooling, streams, index scores and expert functions: their definition, on every instruction set.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/activations.h"
#include "engine/kernels/channel_pool.h"
#include "engine/kernels/gates.h"
#include "engine/kernels/index_score.h"
#include "engine/kernels/stream_mix.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ChannelPool, EveryChannelHasASoftmaxOfItsOwn) {
  for (const size_t count : {1, 4, 8, 128}) {
    for (const size_t width : {1, 16, 33, 112}) {
      SCOPED_TRACE(testing::Message() << count << " rows of " << width);
      Random random(static_cast<uint32_t>(count * 1000 + width));
      std::vector<std::vector<float>> values, scores;
      std::vector<PooledRow> rows;
      for (size_t t = 0; t < count; ++t) {
        values.push_back(random.Normals(width));
        scores.push_back(random.Normals(width));
        for (float& score : scores.back()) score *= 8;
      }
      for (size_t t = 0; t < count; ++t) rows.push_back({values[t].data(), scores[t].data()});
      std::vector<float> twin(width);
      for (size_t i = 0; i < width; ++i) {
        float max = -kInf;
        for (size_t t = 0; t < count; ++t) max = std::max(max, scores[t][i]);
        float sum = 0, weights = 0;
        double exact_sum = 0, exact_weights = 0;
        for (size_t t = 0; t < count; ++t) {
          float e = scores[t][i] - max;
          exact_sum += std::exp(double{scores[t][i]} - double{max}) * double{values[t][i]};
          exact_weights += std::exp(double{scores[t][i]} - double{max});
          Exp({&e, 1}, {&e, 1});
          sum = std::fma(e, values[t][i], sum);
          weights += e;
        }
        twin[i] = sum / weights;
        EXPECT_NEAR(twin[i], exact_sum / exact_weights, 3e-6);
      }
      ForEachTarget([&] {
        std::vector<float> y(width);
        PoolChannels(rows, y);
        ExpectSameBits(y, twin);
      });
    }
  }
}

TEST(StreamMix, ReadsAndWritesByItsMatrix) {
  for (const size_t streams : {1, 3, 4, 16}) {
    for (const size_t width : {5, 16, 64, 100}) {
      SCOPED_TRACE(testing::Message() << streams << " streams of " << width);
      Random random(static_cast<uint32_t>(streams * 1000 + width));
      const std::vector<float> x = random.Normals(streams * width);
      const std::vector<float> y = random.Normals(width), pre = random.Normals(streams);
      const std::vector<float> post = random.Normals(streams);
      const std::vector<float> comb = random.Normals(streams * streams);
      std::vector<float> u(width), written(x.size());
      for (size_t i = 0; i < width; ++i) {
        u[i] = 0;
        for (size_t j = 0; j < streams; ++j) u[i] = std::fma(pre[j], x[j * width + i], u[i]);
        for (size_t b = 0; b < streams; ++b) {
          float sum = post[b] * y[i];
          // From stream a to stream b: the row is where it comes from.
          for (size_t a = 0; a < streams; ++a) {
            sum = std::fma(comb[a * streams + b], x[a * width + i], sum);
          }
          written[b * width + i] = sum;
        }
      }
      ForEachTarget([&] {
        std::vector<float> read(width), after = x;
        ReadStreams(x, pre, read);
        ExpectSameBits(read, u);
        WriteStreams(y, post, comb, after);
        ExpectSameBits(after, written);
      });
    }
  }
}

TEST(IndexScore, SumsWhatIsPositiveByTheHeadsWeights) {
  constexpr size_t kStride = 64;
  for (const size_t heads : {1, 2, 8}) {
    for (const size_t count : {1, 16, 37, 64}) {
      Random random(static_cast<uint32_t>(heads * 100 + count));
      const std::vector<float> products = random.Normals(heads * kStride);
      const std::vector<float> weights = random.Normals(heads);
      std::vector<float> twin(count, 0.0f);
      for (size_t t = 0; t < count; ++t) {
        for (size_t h = 0; h < heads; ++h) {
          twin[t] = std::fma(std::max(products[h * kStride + t], 0.0f), weights[h], twin[t]);
        }
      }
      ForEachTarget([&] {
        std::vector<float> scores(count);
        IndexScores(products.data(), kStride, weights, scores);
        ExpectSameBits(scores, twin);
      });
    }
  }
  const float products[] = {-1.0f, kNan};
  const float weight = -2.0f;
  ForEachTarget([&] {
    std::vector<float> scores(2);
    IndexScores(products, 2, {&weight, 1}, scores);
    EXPECT_EQ(scores[0], 0.0f);
    EXPECT_TRUE(std::isnan(scores[1]));
  });
}

TEST(Gates, SqrtSoftplusOfKnownValues) {
  const std::vector<float> x = {-30, -20, -10, -2, 0, 1, 3, 20, 20.5f, 100};
  const std::vector<double> expected = {
      3.05902321e-07, 4.53999297e-05, 0.00673787053, 0.356269576, 0.832554611,
      1.1459763,      1.74602043,     4.47213596,    4.52769257,  10};
  ForEachTarget([&] {
    std::vector<float> y(x.size());
    SqrtSoftplus(x, y);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i] / expected[i], 1, 3e-7) << x[i];
  });
}

TEST(Gates, SqrtSoftplusIsAccurateEverywhere) {
  std::vector<float> x;
  for (float v = -86.0f; v < 40.0f; v += 0.0137f) x.push_back(v);
  std::vector<float> first;
  ForEachTarget([&] {
    std::vector<float> y(x.size());
    SqrtSoftplus(x, y);
    if (first.empty()) first = y;
    ExpectSameBits(y, first);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::sqrt(std::log1p(std::exp(double{x[i]})));
      ASSERT_NEAR(y[i] / exact, 1, 4e-7) << x[i];
    }
    std::vector<float> odd = {kNan, kInf, -kInf, -200.0f};
    SqrtSoftplus(odd, odd);
    EXPECT_TRUE(std::isnan(odd[0]));
    EXPECT_EQ(odd[1], kInf);
    EXPECT_EQ(odd[2], 0.0f);
    EXPECT_EQ(odd[3], 0.0f);
  });
}

TEST(Gates, SwigluClampsTheGateAboveAndTheOtherBothWays) {
  const std::vector<float> gate = {-9, -1, 0.5f, 1.5f, 9, 2};
  const std::vector<float> up = {1, 9, -9, 0.25f, 2, -0.5f};
  for (const float limit : {1.25f, 0.0f, -1.0f}) {
    ForEachTarget([&] {
      std::vector<float> y = gate;
      ClampedSwiglu(y, up, 0.75f, limit, y);
      for (size_t i = 0; i < gate.size(); ++i) {
        const double lim = limit > 0 ? double{limit} : 1e30;
        const double g = std::min(double{gate[i]}, lim);
        const double u = std::clamp(double{up[i]}, -lim, lim);
        EXPECT_NEAR(y[i], 0.75 * g / (1 + std::exp(-g)) * u, 2e-6) << limit << " " << i;
      }
    });
  }
  std::vector<float> bad = {kNan, 1.0f};
  const std::vector<float> other = {1.0f, kNan};
  ClampedSwiglu(bad, other, 1, 10, bad);
  EXPECT_TRUE(std::isnan(bad[0]));
  EXPECT_TRUE(std::isnan(bad[1]));
}

}  // namespace
}  // namespace mk
