#include "engine/parallel/flush_denormals.h"

#include <gtest/gtest.h>

#include <cfloat>

#include "engine/parallel/thread_pool.h"

namespace mk {
namespace {

// Half of the smallest normal float, computed at run time.
float HalfOfSmallest() {
  volatile float smallest = FLT_MIN;
  volatile float half = smallest * 0.5f;
  return half;
}

bool IsZero(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits << 1 == 0;
}

TEST(FlushDenormals, FlushesWhileItLivesAndRestores) {
  EXPECT_FALSE(IsZero(HalfOfSmallest()));
  {
    const FlushDenormals outer;
    EXPECT_TRUE(IsZero(HalfOfSmallest()));
    {
      const FlushDenormals inner;
      EXPECT_TRUE(IsZero(HalfOfSmallest()));
    }
    EXPECT_TRUE(IsZero(HalfOfSmallest()));
  }
  EXPECT_FALSE(IsZero(HalfOfSmallest()));
}

TEST(FlushDenormals, TreatsSubnormalInputsAsZero) {
  volatile float subnormal = FLT_MIN / 4;
  volatile float large = 1e30f;
  EXPECT_GT(subnormal * large, 0.0f);
  const FlushDenormals flush;
  EXPECT_EQ(subnormal * large, 0.0f);
}

TEST(FlushDenormals, HoldsInEveryWorkerAndNotAfter) {
  auto pool = ThreadPool::Create(4);
  ASSERT_TRUE(pool);
  bool flushed[64] = {};
  ASSERT_TRUE(
      (*pool)->ParallelFor(64, [&](size_t i, size_t) { flushed[i] = IsZero(HalfOfSmallest()); }));
  for (bool f : flushed) EXPECT_TRUE(f);
  EXPECT_FALSE(IsZero(HalfOfSmallest()));
}

}  // namespace
}  // namespace mk
