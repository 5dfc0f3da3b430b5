#include "engine/kernels/vq1_search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/format/vq1.h"
#include "engine/kernels/vq1_matmul.h"
#include "engine/parallel/page_buffer.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

struct Found {
  uint8_t index = 0;
  float distance = 0;
};

// The definition, one entry after the other.
Found Nearest(const float* entries, const float* values) {
  Found best;
  for (size_t k = 0; k < 256; ++k) {
    float sum = 0;
    for (size_t j = 0; j < 16; ++j) {
      const float difference = values[j] - entries[k * 16 + j];
      const float square = difference * difference;
      sum += square;
    }
    if (k == 0 || sum < best.distance) best = {static_cast<uint8_t>(k), sum};
  }
  return best;
}

PageBuffer Codebook(uint32_t seed) {
  PageBuffer codebook = std::move(*PageBuffer::Allocate(kVq1CodebookFloats * sizeof(float)));
  Random random(seed);
  for (float& v : codebook.floats().first(256 * 16)) v = random.Normal();
  return codebook;
}

void ExpectDefinition(PageBuffer& codebook, const std::vector<float>& values) {
  CompleteVq1Codebook(codebook.floats().data());
  const size_t count = values.size() / 16;
  ForEachTarget([&] {
    std::vector<uint8_t> indices(count), again(count);
    std::vector<float> distances(count);
    FindNearestVq1(codebook.floats().data(), values.data(), count, indices.data(),
                   distances.data());
    FindNearestVq1(codebook.floats().data(), values.data(), count, again.data(), nullptr);
    EXPECT_EQ(indices, again);
    for (size_t i = 0; i < count; ++i) {
      const Found expected = Nearest(codebook.floats().data(), &values[i * 16]);
      ASSERT_EQ(indices[i], expected.index) << i;
      ASSERT_EQ(Bits(distances[i]), Bits(expected.distance)) << i;
      ASSERT_EQ(indices[i], NearestVq1(std::span<const float, 16>(&values[i * 16], 16),
                                       codebook.floats().first(256 * 16)));
    }
  });
}

TEST(Vq1Search, FindsWhatTheDefinitionFinds) {
  for (const size_t count : {1u, 2u, 3u, 4u, 5u, 300u}) {
    PageBuffer codebook = Codebook(count);
    ExpectDefinition(codebook, Random(static_cast<uint32_t>(count + 50)).Normals(count * 16));
  }
}

// Entries that are all over the codebook equal: the lowest one is taken, whatever lane it is in.
TEST(Vq1Search, TakesTheLowestOfEqualEntries) {
  PageBuffer codebook = Codebook(9);
  const std::span<float> entries = codebook.floats();
  std::vector<float> values;
  for (const size_t first : {3u, 18u, 70u, 255u}) {
    for (const size_t other : {19u, 34u, 133u, 254u}) {
      std::copy_n(&entries[first * 16], 16, &entries[other * 16]);
    }
    values.insert(values.end(), &entries[first * 16], &entries[first * 16 + 16]);
  }
  std::fill_n(values.begin(), 16, 0.0f);
  ExpectDefinition(codebook, values);
  std::fill_n(entries.begin(), 256 * 16, 1.5f);
  ExpectDefinition(codebook, values);
}

}  // namespace
}  // namespace mk
