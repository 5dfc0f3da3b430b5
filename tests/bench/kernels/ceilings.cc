#include "tests/bench/kernels/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/parallel/page_buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/kernels/ceilings.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

// Independent chains of multiply-adds, as many as hide their latency. Returns operations done.
double FmaRound(size_t steps, float* out) {
  constexpr size_t kChains = HWY_TARGET == HWY_AVX2 ? 6 : 12;
  V16 chain[kChains];
  for (size_t i = 0; i < kChains; ++i) chain[i] = Set16(static_cast<float>(i));
  const V16 a = Set16(out[0]);
  const V16 b = Set16(out[1]);
  for (size_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < kChains; ++i) chain[i] = Fma16(chain[i], a, b);
  }
  V16 sum = chain[0];
  for (size_t i = 1; i < kChains; ++i) sum = Add16(sum, chain[i]);
  Store16(sum, out);
  return 2.0 * 16 * kChains * static_cast<double>(steps);
}

// `count` a multiple of 128.
void ReadRound(const float* data, size_t count, float* out) {
  V16 sum[8];
  for (auto& s : sum) s = Zero16();
  for (size_t i = 0; i < count; i += 128) {
    for (size_t j = 0; j < 8; ++j) sum[j] = Add16(sum[j], LoadAligned16(data + i + 16 * j));
  }
  for (size_t j = 1; j < 8; ++j) sum[0] = Add16(sum[0], sum[j]);
  Store16(sum[0], out);
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(FmaRound);
HWY_EXPORT(ReadRound);

namespace {

// One cache line per worker.
struct alignas(64) Line {
  float value[16] = {0.999f, 0.001f};
};

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

Ceilings MeasureCeilings(ThreadPool& pool) {
  constexpr int kRounds = 12;
  constexpr size_t kBytesPerWorker = size_t{256} << 20;
  Ceilings best;
  const size_t workers = pool.size();
  std::vector<Line> lines(workers);
  std::vector<double> operations(workers);
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (!pool.ParallelFor(workers, [&](size_t i, size_t) {
          lines[i] = Line{};
          operations[i] = HWY_DYNAMIC_DISPATCH(FmaRound)(size_t{1} << 20, lines[i].value);
        })) {
      return best;
    }
    const double seconds = Seconds(start);
    double total = 0;
    for (double done : operations) total += done;
    best.fma_gflop_per_s = std::max(best.fma_gflop_per_s, total / seconds * 1e-9);
  }
  Result<PageBuffer> buffer = PageBuffer::Allocate(kBytesPerWorker * workers);
  if (!buffer) return best;
  std::fill(buffer->floats().begin(), buffer->floats().end(), 1.0f);
  const size_t count = kBytesPerWorker / sizeof(float);
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (!pool.ParallelFor(workers, [&](size_t i, size_t) {
          HWY_DYNAMIC_DISPATCH(ReadRound)
          (buffer->floats().data() + i * count, count, lines[i].value);
        })) {
      return best;
    }
    const double bytes = static_cast<double>(buffer->size());
    best.read_gb_per_s = std::max(best.read_gb_per_s, bytes / Seconds(start) * 1e-9);
  }
  return best;
}

}  // namespace mk
#endif  // HWY_ONCE
