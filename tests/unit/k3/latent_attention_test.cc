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

  AttentionTile Tile(size_t first) const {
    const float* begin = rows.data() + first * stride;
    return {begin, stride, key_width, begin, stride, value_width};
  }
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

// Segment by segment, then merged.
std::vector<float> RunKernel(const Problem& p) {
  const FlushDenormals flush;
  std::vector<float> out(p.value_width), acc(p.value_width);
  AttentionQuery total;
  total.acc = out.data();
  for (size_t begin = 0; begin < p.positions; begin += kAttentionSegment) {
    AttentionQuery query;
    std::fill(acc.begin(), acc.end(), 0.0f);
    query.acc = begin == 0 ? out.data() : acc.data();
    query.query = p.query.data();
    const size_t end = std::min(p.positions, begin + kAttentionSegment);
    for (size_t first = begin; first < end; first += kAttentionTile) {
      query.count = std::min(kAttentionTile, end - first);
      AttendTile(p.Tile(first), p.scale, {&query, 1});
    }
    if (begin == 0) {
      total = query;
    } else {
      MergeAttention(query, p.value_width, total);
    }
  }
  FinishAttention(total, p.value_width);
  return out;
}

struct Widths {
  size_t key, value;
};

TEST(LatentAttention, MatchesAPlainSoftmax) {
  for (const size_t positions : {1, 3, 63, 64, 65, 300, 1000, 1100}) {
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

// Any number of queries at once, seeing different numbers of positions, as each by itself.
TEST(LatentAttention, QueriesDoNotMeet) {
  const Problem p = Make(64, 150, 100, 1);
  const size_t queries = 15;
  Random random(9);
  const std::vector<float> values = random.Normals(queries * p.key_width);
  const auto run = [&](bool together) {
    std::vector<float> acc(queries * p.value_width);
    std::vector<AttentionQuery> all(queries);
    for (size_t i = 0; i < queries; ++i) {
      all[i].query = values.data() + i * p.key_width;
      all[i].acc = acc.data() + i * p.value_width;
      all[i].count = i < 9 ? 64 : 20 + i / 2;
    }
    for (int tile = 0; tile < 2; ++tile) {
      if (together) {
        AttendTile(p.Tile(0), p.scale, all);
      } else {
        for (AttentionQuery& query : all) AttendTile(p.Tile(0), p.scale, {&query, 1});
      }
    }
    for (const AttentionQuery& query : all) acc.push_back(query.sum);
    for (const AttentionQuery& query : all) acc.push_back(query.max);
    return acc;
  };
  const std::vector<float> expected = run(false);
  ForEachTarget([&] { EXPECT_EQ(run(true), expected); });
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
