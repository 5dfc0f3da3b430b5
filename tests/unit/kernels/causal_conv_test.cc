#include "engine/kernels/causal_conv.h"

#include <gtest/gtest.h>

#include "engine/kernels/activations.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

struct Problem {
  CausalConv conv;
  size_t n;
  std::vector<float> weights, x, history;

  Problem(size_t channels, size_t taps, size_t count, uint32_t seed) : n(count) {
    Random random(seed);
    weights = random.Normals(taps * channels);
    x = random.Normals(n * channels);
    history = random.Normals((taps - 1) * channels);
    conv = {channels, taps, weights.data()};
  }

  // Input of a channel at a position, which may lie in the history.
  float Input(ptrdiff_t t, size_t c) const {
    if (t >= 0) return x[static_cast<size_t>(t) * conv.channels + c];
    return history[static_cast<size_t>(t + static_cast<ptrdiff_t>(conv.taps) - 1) * conv.channels +
                   c];
  }
};

TEST(CausalConv, FollowsItsDefinition) {
  for (size_t taps : {1u, 2u, 3u, 4u, 7u, 16u}) {
    for (size_t channels : {1u, 16u, 37u}) {
      for (size_t n : {1u, 2u, 3u, 5u, 20u}) {
        SCOPED_TRACE(testing::Message() << taps << " taps, " << channels << " channels, n=" << n);
        const Problem problem(channels, taps, n, 5);
        ForEachTarget([&] {
          std::vector<float> history = problem.history, y(n * channels);
          CausalConvSilu(problem.conv, 0, channels, problem.x.data(), channels, n, history.data(),
                         y.data(), channels);
          for (size_t c = 0; c < channels; ++c) {
            for (size_t t = 0; t < n; ++t) {
              const auto at = [&](size_t k) {
                return problem.Input(
                    static_cast<ptrdiff_t>(t + k) - static_cast<ptrdiff_t>(taps - 1), c);
              };
              double exact = 0;
              float sum = 0;
              for (size_t k = 0; k < taps; ++k) {
                const float w = problem.weights[k * channels + c];
                exact += double{w} * double{at(k)};
                sum = k == 0 ? w * at(k) : std::fma(w, at(k), sum);
              }
              float silu;
              Silu({&sum, 1}, {&silu, 1});
              ASSERT_EQ(Bits(y[t * channels + c]), Bits(silu));
              ASSERT_NEAR(silu, exact / (1 + std::exp(-exact)), 1e-5);
            }
            for (size_t k = 0; k + 1 < taps; ++k) {
              const ptrdiff_t t = static_cast<ptrdiff_t>(n + k) - static_cast<ptrdiff_t>(taps - 1);
              ASSERT_EQ(history[k * channels + c], problem.Input(t, c));
            }
          }
        });
      }
    }
  }
}

TEST(CausalConv, AnyCutOfARunGivesTheSameBits) {
  const size_t channels = 21, n = 11;
  const Problem problem(channels, 4, n, 9);
  std::vector<float> whole_history = problem.history, whole(n * channels);
  CausalConvSilu(problem.conv, 0, channels, problem.x.data(), channels, n, whole_history.data(),
                 whole.data(), channels);
  for (size_t cut = 0; cut <= n; ++cut) {
    std::vector<float> history = problem.history, y(n * channels);
    for (auto [begin, end] : {std::pair{size_t{0}, cut}, std::pair{cut, n}}) {
      CausalConvSilu(problem.conv, 0, channels, problem.x.data() + begin * channels, channels,
                     end - begin, history.data(), y.data() + begin * channels, channels);
    }
    ExpectSameBits(y, whole);
    ExpectSameBits(history, whole_history);
  }
}

TEST(CausalConv, WorkersMayShareTheChannels) {
  const size_t channels = 50, n = 3;
  const Problem problem(channels, 4, n, 10);
  std::vector<float> whole_history = problem.history, whole(n * channels);
  CausalConvSilu(problem.conv, 0, channels, problem.x.data(), channels, n, whole_history.data(),
                 whole.data(), channels);
  std::vector<float> history = problem.history, y(n * channels);
  for (auto [begin, end] : {std::pair{33u, 50u}, std::pair{0u, 16u}, std::pair{16u, 33u}}) {
    CausalConvSilu(problem.conv, begin, end, problem.x.data(), channels, n, history.data(),
                   y.data(), channels);
  }
  ExpectSameBits(y, whole);
  ExpectSameBits(history, whole_history);
}

}  // namespace
}  // namespace mk
