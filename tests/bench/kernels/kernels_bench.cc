// Times of the kernels next to the ceilings of the machine, measured in the same run:
//   kernels_bench [--benchmark_filter=REGEX]
// Counters: GB/s and GFLOP/s of the kernel, and the share of the ceiling that binds it
// (share_read: bytes of weights against streaming reads, share_fma: useful operations against
// fused multiply-adds on registers). Matrices rotate through a set larger than the caches, as the
// layers of a model do.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "engine/bench/ceilings.h"
#include "engine/kernels/activations.h"
#include "engine/kernels/expert_matmul.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/nibble_panels.h"
#include "engine/kernels/target.h"
#include "engine/kernels/vector_ops.h"
#include "engine/kernels/vq1_matmul.h"
#include "engine/parallel/flush_denormals.h"
#include "engine/parallel/page_buffer.h"

namespace mk {
namespace {

constexpr size_t kSetBytes = size_t{256} << 20;  // weights that one benchmark walks through

// Pool and ceilings for a number of threads, made on first use.
struct Bench {
  std::unique_ptr<ThreadPool> pool;
  Ceilings ceilings;

  static Bench& For(size_t threads) {
    static std::map<size_t, Bench> all;
    Bench& bench = all[threads];
    if (!bench.pool) {
      bench.pool = std::move(*ThreadPool::Create(threads));
      bench.ceilings = *MeasureCeilings(*bench.pool);
      std::printf(
          "# %zu thread(s), %.*s: read %.1f GB/s (24 MiB: %.1f), f32 FMA %.1f GFLOP/s, int8 %.1f "
          "GOP/s\n",
          threads, static_cast<int>(KernelTarget().size()), KernelTarget().data(),
          bench.ceilings.read_gb_per_s, bench.ceilings.cache_read_gb_per_s,
          bench.ceilings.fma_gflop_per_s, bench.ceilings.int8_gop_per_s);
      std::fflush(stdout);
    }
    return bench;
  }
};

std::vector<float> Randoms(size_t count) {
  std::minstd_rand engine(7);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> v(count);
  for (float& x : v) x = uniform(engine);
  return v;
}

// Per iteration: `bytes` of weights read and `operations` (a multiply-add is two).
void Report(benchmark::State& state, const Bench& bench, double bytes, double operations) {
  const double iterations = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(bytes * iterations * 1e-9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(operations * iterations * 1e-9, Counter::kIsRate);
  state.counters["share_read"] =
      Counter(bytes * iterations * 1e-9 / bench.ceilings.read_gb_per_s, Counter::kIsRate);
  state.counters["share_fma"] =
      Counter(operations * iterations * 1e-9 / bench.ceilings.fma_gflop_per_s, Counter::kIsRate);
}

// kind, rows, cols, n, threads, matrices per call
void BM_MatMul(benchmark::State& state) {
  const auto kind = static_cast<WeightKind>(state.range(0));
  const auto rows = static_cast<size_t>(state.range(1));
  const auto cols = static_cast<size_t>(state.range(2));
  const auto n = static_cast<size_t>(state.range(3));
  Bench& bench = Bench::For(static_cast<size_t>(state.range(4)));
  const auto fused = static_cast<size_t>(state.range(5));
  const size_t size = PackedBytes(kind, rows, cols);
  const size_t calls = std::max<size_t>(1, kSetBytes / (size * fused));
  Result<PageBuffer> weights = PageBuffer::Allocate(calls * fused * size);
  if (!weights) return state.SkipWithError("out of memory");
  const std::vector<float> source = Randoms(rows * cols);
  for (size_t i = 0; i < calls * fused; ++i) {
    PackRows(kind, source, 0, rows, cols, {weights->data() + i * size, size});
  }
  const std::vector<float> x = Randoms(n * cols);
  const size_t groups = Q8Groups(cols);
  std::vector<int8_t> values(n * groups * kQ8Group);
  std::vector<float> scales(n * groups);
  std::vector<int32_t> offsets(n * groups);
  const Q8Rows q8{values.data(), scales.data(), offsets.data(), groups, groups};
  QuantizeRows(x.data(), cols, cols, 0, n, q8);
  std::vector<float> y(fused * n * rows);
  std::vector<MatMulJob> jobs(fused);
  size_t call = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < fused; ++i) {
      const std::byte* panels = weights->data() + (call * fused + i) * size;
      jobs[i] = {
          {kind, panels, rows, cols}, x.data(), cols, y.data() + i * n * rows, rows, n, {q8, {}}};
    }
    if (!ParallelMatMul(*bench.pool, jobs)) return state.SkipWithError("failed");
    benchmark::ClobberMemory();
    call = (call + 1) % calls;
  }
  const auto operations = static_cast<double>(rows * cols * fused * 2 * n);
  Report(state, bench, static_cast<double>(size * fused), operations);
}

void MatMulArgs(benchmark::internal::Benchmark* b) {
  b->ArgNames({"kind", "rows", "cols", "n", "threads", "fused"})->UseRealTime();
  for (int kind : {0, 1, 2}) {  // f32, bf16, q8
    for (int threads : {1, 2}) {
      for (int n : {1, 2, 4, 8}) b->Args({kind, 1024, 1024, n, threads, 1});
      b->Args({kind, 256, 256, 1, threads, 8});
      b->Args({kind, 4096, 7168, 1, threads, 1});
      for (int n : {16, 64, 512}) b->Args({kind, 1024, 1024, n, threads, 1});
      b->Args({kind, 512, 384, 500, threads, 1});
      b->Args({kind, 256, 256, 500, threads, 1});
    }
  }
}
BENCHMARK(BM_MatMul)->Apply(MatMulArgs);

// rows, cols
void BM_QuantizeRows(benchmark::State& state) {
  const auto rows = static_cast<size_t>(state.range(0));
  const auto cols = static_cast<size_t>(state.range(1));
  const std::vector<float> x = Randoms(rows * cols);
  const size_t groups = Q8Groups(cols);
  std::vector<int8_t> values(rows * groups * kQ8Group);
  std::vector<float> scales(rows * groups);
  std::vector<int32_t> offsets(rows * groups);
  for (auto _ : state) {
    QuantizeRows(x.data(), cols, cols, 0, rows,
                 Q8Rows{values.data(), scales.data(), offsets.data(), groups, groups});
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(rows * cols) * 4e-9 * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}
BENCHMARK(BM_QuantizeRows)->ArgNames({"rows", "cols"})->Args({1, 512})->Args({64, 512});

// kind, rows, cols, n, threads, experts per call, activations as bytes
void BM_ExpertMatMul(benchmark::State& state) {
  const auto kind = static_cast<ExpertKind>(state.range(0));
  const auto rows = static_cast<size_t>(state.range(1));
  const auto cols = static_cast<size_t>(state.range(2));
  const auto n = static_cast<size_t>(state.range(3));
  Bench& bench = Bench::For(static_cast<size_t>(state.range(4)));
  const auto experts = static_cast<size_t>(state.range(5));
  const bool use_bytes = state.range(6) != 0;
  const size_t packed = kind == ExpertKind::kF32   ? rows * cols * 4
                        : kind == ExpertKind::kVq1 ? rows * cols / 16
                                                   : NibbleMatrixBytes(rows, cols);
  const size_t calls = std::max<size_t>(1, kSetBytes / (packed * experts));
  Result<PageBuffer> weights = PageBuffer::Allocate(calls * experts * packed);
  Result<PageBuffer> codebook = PageBuffer::Allocate(kVq1CodebookFloats * sizeof(float));
  if (!weights || !codebook) return state.SkipWithError("out of memory");
  for (size_t i = 0; i < weights->size(); ++i) {
    weights->data()[i] = static_cast<std::byte>(kind == ExpertKind::kF32 ? 0x3c : 0x60 + i % 31);
  }
  const std::vector<float> x = Randoms(n * cols);
  const size_t groups = Q8Groups(cols);
  std::vector<int8_t> values(n * groups * kQ8Group);
  std::vector<float> scales(n * groups);
  std::vector<int32_t> offsets(n * groups);
  const Q8Rows q8{values.data(), scales.data(), offsets.data(), groups, groups};
  QuantizeRows(x.data(), cols, cols, 0, n, q8);
  std::vector<float> y(experts * n * rows);
  std::vector<ExpertJob> jobs(experts);
  size_t call = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < experts; ++i) {
      const std::byte* blob = weights->data() + (call * experts + i) * packed;
      ExpertMatrix w{kind, rows, cols};
      w.packed = reinterpret_cast<const uint8_t*>(blob);
      w.smax = 1;
      w.values = reinterpret_cast<const float*>(blob);
      w.codebook = codebook->floats().data();
      jobs[i] = {w, x.data(), cols, y.data() + i * n * rows, rows, n};
      if (use_bytes) jobs[i].q8 = q8;
    }
    if (!ParallelExpertMatMul(*bench.pool, jobs)) return state.SkipWithError("failed");
    benchmark::ClobberMemory();
    call = (call + 1) % calls;
  }
  const double operations = 2.0 * static_cast<double>(rows * cols * n * experts);
  Report(state, bench, static_cast<double>(packed * experts), operations);
}

void ExpertArgs(benchmark::internal::Benchmark* b) {
  b->ArgNames({"kind", "rows", "cols", "n", "threads", "experts", "bytes"})->UseRealTime();
  for (int threads : {1, 2}) {
    for (int kind : {0, 1, 2, 3}) {
      for (int bytes = 0; bytes <= (kind == 1 || kind == 2 ? 1 : 0); ++bytes) {
        for (int n : {1, 4, 8, 64}) b->Args({kind, 128, 64, n, threads, 16, bytes});
        for (int n : {1, 8}) b->Args({kind, 2048, 3072, n, threads, 1, bytes});
      }
    }
  }
}
BENCHMARK(BM_ExpertMatMul)->Apply(ExpertArgs);

// form: 0 gather, 1 tables that every product makes, 2 lanes, 3 tables made once per input;
// experts: products that share an input.
void BM_Vq1MatMul(benchmark::State& state) {
  const int64_t form = state.range(0);
  const auto rows = static_cast<size_t>(state.range(1));
  const auto cols = static_cast<size_t>(state.range(2));
  const auto n = static_cast<size_t>(state.range(3));
  const auto experts = static_cast<size_t>(state.range(4));
  Result<PageBuffer> codebook = PageBuffer::Allocate(kVq1CodebookFloats * sizeof(float));
  if (!codebook) return state.SkipWithError("out of memory");
  CompleteVq1Codebook(codebook->floats().data());
  std::vector<uint8_t> packed(experts * rows * cols / 16);
  for (size_t i = 0; i < packed.size(); ++i)
    packed[i] = static_cast<uint8_t>(i * 0x9e3779b1u >> 24);
  const std::vector<float> x = Randoms(n * cols);
  std::vector<float> y(n * rows), tables(n * Vq1TableFloats(cols, 1));
  ExpertJob job{{ExpertKind::kVq1, rows, cols}, x.data(), cols, y.data(), rows, n};
  job.w.codebook = codebook->floats().data();
  for (auto _ : state) {
    for (size_t i = 0; form == 3 && i < n; ++i) {
      BuildVq1Tables(job.w.codebook, 1, &x[i * cols], cols, &tables[i * Vq1TableFloats(cols, 1)]);
    }
    if (form == 3) job.tables = {tables.data()};
    for (size_t e = 0; e < experts; ++e) {
      job.w.packed = &packed[e * rows * cols / 16];
      Vq1MatMulAs(form == 3 ? Vq1Form::kTables : static_cast<Vq1Form>(form), job, 0, rows);
    }
    benchmark::ClobberMemory();
  }
  state.counters["weights/ns"] =
      benchmark::Counter(static_cast<double>(rows * cols * n * experts) * 1e-9 *
                             static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

void Vq1Args(benchmark::internal::Benchmark* b) {
  b->ArgNames({"form", "rows", "cols", "n", "experts"});
  for (const int form : {0, 1, 2, 3}) {
    for (const int rows : {8, 16, 32}) b->Args({form, rows, 64, 1, 1});
    for (const int n : {1, 4, 8, 16, 64}) {
      for (const int rows : {64, 128}) b->Args({form, rows, 64, n, 8});
      b->Args({form, 2048, 3072, n, 1});
    }
  }
}
BENCHMARK(BM_Vq1MatMul)->Apply(Vq1Args);

// Cost of a loop of two empty tasks.
void BM_ParallelFor(benchmark::State& state) {
  Bench& bench = Bench::For(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    if (!bench.pool->ParallelFor(2, [](size_t, size_t) {})) return;
  }
}
BENCHMARK(BM_ParallelFor)->Arg(1)->Arg(2)->UseRealTime();

template <typename F>
void Elementwise(benchmark::State& state, F function) {
  const std::vector<float> x = Randoms(static_cast<size_t>(state.range(0)));
  std::vector<float> y(x.size());
  for (auto _ : state) {
    function(x, y);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void BM_Dot(benchmark::State& state) {
  Elementwise(state, [](auto& x, auto& y) { benchmark::DoNotOptimize(y[0] = Dot(x, x)); });
}
void BM_RmsNorm(benchmark::State& state) {
  Elementwise(state, [](auto& x, auto& y) { RmsNorm(x, x, 1e-5f, y); });
}
void BM_Softmax(benchmark::State& state) {
  Elementwise(state, [](auto& x, auto& y) {
    y = x;
    Softmax(y);
  });
}
void BM_Silu(benchmark::State& state) {
  Elementwise(state, [](auto& x, auto& y) { Silu(x, y); });
}
void BM_Situ(benchmark::State& state) {
  Elementwise(state, [](auto& x, auto& y) { Situ(x, x, SituCaps{}, y); });
}
BENCHMARK(BM_Dot)->Arg(1024);
BENCHMARK(BM_RmsNorm)->Arg(256)->Arg(1024);
BENCHMARK(BM_Softmax)->Arg(1024);
BENCHMARK(BM_Silu)->Arg(1024);
BENCHMARK(BM_Situ)->Arg(1024);

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const mk::FlushDenormals flush;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
