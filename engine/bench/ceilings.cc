#include "engine/bench/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "engine/kernels/target.h"
#include "engine/parallel/page_buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/bench/ceilings.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/byte_dot-inl.h"
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

// Calls body(0) ... body(N-1) with indices known to the compiler, so that arrays stay in registers.
template <size_t N, size_t I = 0, class Body>
HWY_INLINE void Unrolled(const Body& body) {
  if constexpr (I < N) {
    body(std::integral_constant<size_t, I>());
    Unrolled<N, I + 1>(body);
  }
}

// The same of byte dot products: four products and sums per lane and step. Weights differ from
// chain to chain and activations from step to step, so that no product can be kept.
template <bool kVnni>
double ByteDotSteps(size_t steps, float* out) {
  constexpr size_t kChains = HWY_TARGET == HWY_AVX3 ? 12 : 4;
  constexpr size_t kTable = 64;
  alignas(64) int8_t table[kTable][64];
  for (size_t i = 0; i < kTable * 64; ++i) table[i / 64][i % 64] = static_cast<int8_t>(i % 63);
  I16 chain[kChains];
  Bytes64 w[kChains];
  Unrolled<kChains>([&](auto i) HWY_ATTR {
    chain[i] = SetInts16(static_cast<int32_t>(i));
    w[i] = LoadBytes64(table[i]);
  });
  for (size_t step = 0; step < steps; ++step) {
    const Bytes64 x = LoadBytes64(table[step % kTable]);
    Unrolled<kChains>([&](auto i) HWY_ATTR {
      if constexpr (kVnni) {
        AddDotUnsigned(chain[i], w[i], x);
      } else {
        AddDot(chain[i], w[i], x);
      }
    });
  }
  V16 sum = Zero16();
  Unrolled<kChains>([&](auto i) HWY_ATTR { sum = Add16(sum, ToFloats16(chain[i])); });
  Store16(sum, out);
  return 2.0 * 64 * kChains * static_cast<double>(steps);
}

double ByteDotRound(bool vnni, size_t steps, float* out) {
  if (kMayHaveVnni && vnni) return ByteDotSteps<kMayHaveVnni>(steps, out);
  return ByteDotSteps<false>(steps, out);
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
HWY_EXPORT(ByteDotRound);
HWY_EXPORT(ReadRound);

namespace {

// Rounds go on for at least so long: other work may take the processors away for a while.
constexpr auto kLeastTime = std::chrono::milliseconds(150);
constexpr int kLeastRounds = 12;
constexpr size_t kSteps = size_t{1} << 19;
// Reads of one round at least, so that starting the workers costs nothing beside them.
constexpr size_t kRoundBytes = size_t{256} << 20;
constexpr size_t kStreamBytesPerWorker = size_t{64} << 20;
constexpr size_t kLeastStreamBytes = size_t{256} << 20;
constexpr size_t kReadUnit = 128 * sizeof(float);

// Two cache lines per worker.
struct alignas(128) Line {
  float value[16] = {0.999f, 0.001f};
};

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

Status GoOn(const std::function<bool()>& go_on) {
  if (!go_on || go_on()) return {};
  return Fail(ErrorCode::kCancelled, "the measurement was cancelled");
}

// Best of the rounds, in 1e9 per second. `work(worker)` runs on every worker and returns how much
// it did.
template <typename Work>
Result<double> BestRate(ThreadPool& pool, const std::function<bool()>& go_on, const Work& work) {
  std::vector<double> done(pool.size());
  double best = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kLeastRounds || std::chrono::steady_clock::now() - begin < kLeastTime;
       ++round) {
    if (Status going = GoOn(go_on); !going) return Fail(going.error());
    const auto start = std::chrono::steady_clock::now();
    Status ran = pool.ParallelFor(pool.size(), [&](size_t i, size_t) { done[i] = work(i); });
    const double seconds = Seconds(start);
    if (!ran) return Fail(ran.error());
    double total = 0;
    for (const double d : done) total += d;
    best = std::max(best, total / seconds * 1e-9);
  }
  return best;
}

}  // namespace

size_t StreamSetBytes(size_t threads) {
  return std::max(kLeastStreamBytes, kStreamBytesPerWorker * threads);
}

Result<double> MeasureRead(ThreadPool& pool, size_t bytes, const std::function<bool()>& go_on) {
  const size_t workers = pool.size();
  const size_t total = std::min(bytes, StreamSetBytes(pool.size()));
  const size_t part = std::max<size_t>(1, total / workers / kReadUnit) * kReadUnit;
  Result<PageBuffer> buffer = PageBuffer::Allocate(part * workers);
  if (!buffer) return Fail(buffer.error());
  std::fill(buffer->floats().begin(), buffer->floats().end(), 1.0f);
  const size_t count = part / sizeof(float);
  const size_t passes = std::max<size_t>(1, kRoundBytes / (part * workers));
  std::vector<Line> lines(workers);
  return BestRate(pool, go_on, [&](size_t i) {
    for (size_t pass = 0; pass < passes; ++pass) {
      HWY_DYNAMIC_DISPATCH(ReadRound)
      (buffer->floats().data() + i * count, count, lines[i].value);
    }
    return static_cast<double>(part * passes);
  });
}

Result<Ceilings> MeasureCeilings(ThreadPool& pool, const std::function<bool()>& go_on) {
  Ceilings found;
  found.threads = pool.size();
  std::vector<Line> lines(pool.size());
  Result<double> fma = BestRate(pool, go_on, [&](size_t i) {
    lines[i] = Line{};
    return HWY_DYNAMIC_DISPATCH(FmaRound)(kSteps, lines[i].value);
  });
  if (!fma) return Fail(fma.error());
  found.fma_gflop_per_s = *fma;
  const bool vnni = HasVnni();
  Result<double> int8 = BestRate(pool, go_on, [&](size_t i) {
    lines[i] = Line{};
    return HWY_DYNAMIC_DISPATCH(ByteDotRound)(vnni, kSteps, lines[i].value);
  });
  if (!int8) return Fail(int8.error());
  found.int8_gop_per_s = *int8;
  Result<double> cache = MeasureRead(pool, kCacheSetBytes, go_on);
  if (!cache) return Fail(cache.error());
  found.cache_read_gb_per_s = *cache;
  Result<double> stream = MeasureRead(pool, StreamSetBytes(pool.size()), go_on);
  if (!stream) return Fail(stream.error());
  found.read_gb_per_s = *stream;
  return found;
}

}  // namespace mk
#endif  // HWY_ONCE
