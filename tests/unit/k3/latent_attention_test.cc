// Tiled attention against a plain softmax in f64, on every instruction set of the machine.

#include "engine/kernels/latent_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

// Keys are the whole rows, values their first `value_width` floats.
struct Problem {
  size_t positions, key_width, value_width, stride;
  std::vector<float> rows;
  std::vector<float> query;
  float scale;
};

Problem Make(size_t positions, size_t key_width, size_t value_width, float spread) {
  Random random(static_cast<uint32_t>(positions * 131 + key_width));
  Problem p{positions, key_width, value_width, key_width + 3, {}, {}, 0};
  p.rows = random.Normals(positions * p.stride);
  p.query = random.Normals(key_width);
  for (float& q : p.query) q *= spread;
  p.scale = 1.0f / std::sqrt(static_cast<float>(key_width));
  return p;
}

std::vector<double> Reference(const Problem& p) {
  std::vector<double> scores(p.positions), out(p.value_width);
  for (size_t t = 0; t < p.positions; ++t) {
    for (size_t c = 0; c < p.key_width; ++c) {
      scores[t] += static_cast<double>(p.query[c]) * p.rows[t * p.stride + c];
    }
    scores[t] *= p.scale;
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (size_t t = 0; t < p.positions; ++t) {
    for (size_t c = 0; c < p.value_width; ++c) {
      out[c] += scores[t] / sum * p.rows[t * p.stride + c];
    }
  }
  return out;
}

std::vector<float> RunKernel(const Problem& p) {
  const FlushDenormals flush;
  std::vector<float> acc(p.value_width);
  AttentionState state;
  for (size_t first = 0; first < p.positions; first += kAttentionTile) {
    const float* rows = p.rows.data() + first * p.stride;
    const AttentionTile tile{rows,
                             p.stride,
                             p.key_width,
                             rows,
                             p.stride,
                             p.value_width,
                             std::min(kAttentionTile, p.positions - first)};
    AttendTile(tile, p.query.data(), p.scale, state, acc.data());
  }
  FinishAttention(state, acc.data(), p.value_width);
  return acc;
}

struct Widths {
  size_t key, value;
};

TEST(LatentAttention, MatchesAPlainSoftmax) {
  for (const size_t positions : {1, 3, 63, 64, 65, 300, 1000}) {
    for (const Widths& widths : {Widths{36, 28}, Widths{128, 64}, Widths{576, 512}, Widths{5, 1}}) {
      for (const float spread : {0.1f, 1.0f, 30.0f}) {
        const Problem p = Make(positions, widths.key, widths.value, spread);
        const std::vector<double> expected = Reference(p);
        ForEachTarget([&] {
          const std::vector<float> got = RunKernel(p);
          for (size_t c = 0; c < widths.value; ++c) {
            // Scores of size 30 sqrt(width) carry their own rounding into the weights.
            ASSERT_NEAR(got[c], expected[c], spread > 1 ? 3e-5 : 3e-6)
                << positions << " " << widths.key << " " << spread;
          }
        });
      }
    }
  }
}

TEST(LatentAttention, EveryInstructionSetGivesTheSameBits) {
  const Problem p = Make(200, 150, 100, 1);
  const std::vector<float> expected = RunKernel(p);
  ForEachTarget([&] { EXPECT_EQ(RunKernel(p), expected); });
}

TEST(LatentAttention, NonFiniteInputsShow) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem p = Make(100, 32, 32, 1);
    p.rows[70 * p.stride + 3] = bad;
    ForEachTarget([&] { EXPECT_FALSE(std::isfinite(RunKernel(p)[3])); });
  }
}

}  // namespace
}  // namespace mk
