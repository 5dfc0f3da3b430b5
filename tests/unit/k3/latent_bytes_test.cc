// Attention over latents kept as bytes, against a plain softmax in f64 over the values that the
// bytes stand for, on every instruction set of the machine.

#include "engine/kernels/latent_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/latent_attention.h"
#include "engine/parallel/page_buffer.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

// What a byte form of a row stands for, quantised part by part.
std::vector<double> Rounded(const float* row, size_t cols, bool two_bytes) {
  std::vector<double> out;
  for (size_t first = 0; first < cols; first += 32) {
    const size_t end = std::min(cols, first + 32);
    std::vector<float> left(row + first, row + end);
    std::vector<double> sum(left.size());
    for (int pass = 0; pass < (two_bytes ? 2 : 1); ++pass) {
      float largest = 0;
      for (const float v : left) largest = std::max(largest, std::fabs(v));
      const float scale = largest / 127.0f;
      for (size_t i = 0; i < left.size(); ++i) {
        const float q = std::nearbyint(left[i] * (127.0f / largest));
        sum[i] += double{q} * double{scale};
        left[i] = std::fma(-q, scale, left[i]);
      }
    }
    out.insert(out.end(), sum.begin(), sum.end());
  }
  return out;
}

struct Problem {
  LatentShape shape;
  size_t positions, queries;
  float scale;
  std::vector<float> rows, query;
  PageBuffer tiles;
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<int32_t> offsets;

  Problem(LatentShape s, size_t p, size_t q, float spread)
      : shape(s), positions(p), queries(q), scale(1.0f / std::sqrt(static_cast<float>(width()))) {
    Random random(static_cast<uint32_t>(positions + width()));
    rows = random.Normals(positions * width());
    query = random.Normals(queries * width());
    for (float& v : query) v *= spread;
    const size_t count = (positions + kLatentTile - 1) / kLatentTile;
    tiles = std::move(*PageBuffer::Allocate(count * shape.tile_bytes()));
    for (size_t t = 0; t < positions; ++t) {
      StoreLatent(shape, &rows[t * width()], t % kLatentTile, Tile(t));
    }
    const size_t groups = shape.groups();
    values.resize(2 * queries * groups * 32);
    scales.resize(2 * queries * groups);
    offsets.resize(2 * queries * groups);
    const size_t latent_groups = shape.latent_groups();
    QuantizeRows(query.data(), width(), shape.latent, 0, queries,
                 Bytes().Columns(0, latent_groups));
    QuantizeRows(query.data() + shape.latent, width(), shape.shared, 0, queries,
                 Bytes().Columns(latent_groups, groups - latent_groups));
  }

  size_t width() const { return shape.latent + shape.shared; }
  std::byte* Tile(size_t position) {
    return tiles.data() + position / kLatentTile * shape.tile_bytes();
  }
  Q8Activations Bytes() {
    const Q8Rows high{values.data(), scales.data(), offsets.data(), shape.groups(), shape.groups()};
    return {high, high.From(queries)};
  }

  // Results of queries [first, first + count), at once.
  std::vector<float> Run(size_t first, size_t count) {
    const FlushDenormals flush;
    std::vector<float> acc(count * shape.latent), scratch(AttentionScratch(shape));
    std::vector<AttentionQuery> all(count);
    for (size_t i = 0; i < count; ++i) {
      all[i].row = first + i;
      all[i].acc = acc.data() + i * shape.latent;
    }
    for (size_t t = 0; t < positions; t += kLatentTile) {
      AttentionTile tile;
      tile.bytes = Tile(t);
      tile.byte_shape = shape;
      tile.query_bytes = Bytes();
      tile.value_width = shape.latent;
      for (AttentionQuery& q : all) q.count = std::min(kLatentTile, positions - t);
      AttendTile(tile, scale, all, scratch);
    }
    for (const AttentionQuery& q : all) FinishAttention(q, shape.latent);
    return acc;
  }

  std::vector<double> Reference(size_t q) const {
    const auto parts = [&](const float* row, bool two_bytes) {
      std::vector<double> all = Rounded(row, shape.latent, two_bytes);
      const std::vector<double> shared = Rounded(row + shape.latent, shape.shared, two_bytes);
      all.insert(all.end(), shared.begin(), shared.end());
      return all;
    };
    const std::vector<double> of_query = parts(&query[q * width()], true);
    std::vector<double> scores(positions), out(shape.latent);
    std::vector<std::vector<double>> keys;
    for (size_t t = 0; t < positions; ++t) {
      keys.push_back(parts(&rows[t * width()], false));
      for (size_t c = 0; c < width(); ++c) scores[t] += of_query[c] * keys[t][c];
      scores[t] *= scale;
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    for (size_t t = 0; t < positions; ++t) {
      for (size_t c = 0; c < shape.latent; ++c) out[c] += scores[t] / sum * keys[t][c];
    }
    return out;
  }
};

TEST(LatentBytes, MatchesAPlainSoftmaxOverTheRoundedRows) {
  for (const LatentShape shape : {LatentShape{64, 64}, LatentShape{40, 12}, LatentShape{5, 33}}) {
    for (const size_t positions : {1, 17, 64, 65, 200}) {
      Problem p(shape, positions, 3, 2.0f);
      for (size_t q = 0; q < p.queries; ++q) {
        const std::vector<double> expected = p.Reference(q);
        ForEachTarget([&] {
          const std::vector<float> got = p.Run(q, 1);
          for (size_t c = 0; c < shape.latent; ++c) {
            ASSERT_NEAR(got[c], expected[c], 5e-6) << positions << " " << shape.latent;
          }
        });
      }
    }
  }
}

TEST(LatentBytes, QueriesDoNotMeetOnAnyInstructionSet) {
  Problem p({72, 40}, 150, 9, 1.0f);
  std::vector<float> expected;
  for (size_t q = 0; q < p.queries; ++q) {
    const std::vector<float> one = p.Run(q, 1);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  ForEachTarget([&] { ExpectSameBits(p.Run(0, p.queries), expected); });
}

TEST(LatentBytes, NonFiniteRowsShow) {
  Problem p({32, 32}, 100, 1, 1.0f);
  p.rows[70 * 64 + 3] = NAN;
  StoreLatent(p.shape, &p.rows[70 * 64], 70 % kLatentTile, p.Tile(70));
  ForEachTarget([&] { EXPECT_FALSE(std::isfinite(p.Run(0, 1)[3])); });
}

}  // namespace
}  // namespace mk
