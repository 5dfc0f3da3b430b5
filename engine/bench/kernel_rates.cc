#include "engine/bench/kernel_rates.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "engine/bench/ceilings.h"
#include "engine/kernels/expert_matmul.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/nibble_panels.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/parallel/flush_denormals.h"
#include "engine/parallel/page_buffer.h"

namespace mk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRows = 2048;  // of a matrix
constexpr size_t kCols = 1024;
constexpr size_t kSetBytes = size_t{96} << 20;
constexpr size_t kPromptRows = 64;  // activations at once
constexpr size_t kExpertRows = 8;
constexpr size_t kLayerExperts = 8;  // experts of a call
constexpr auto kTime = std::chrono::milliseconds(120);
constexpr size_t kLeastSamples = 5;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// As in a spine (engine/spine/spine_builder.h), small matrices left out.
WeightKind KindOf(Precision precision) {
  switch (precision) {
    case Precision::kExact:
      return WeightKind::kF32;
    case Precision::kBf16:
      return WeightKind::kBf16;
    case Precision::kQ8:
      break;
  }
  return WeightKind::kQ8;
}

std::vector<float> RandomFloats(size_t count) {
  std::minstd_rand random(7);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  return values;
}

// Rows of activations, as floats and as bytes.
class Inputs {
 public:
  explicit Inputs(size_t rows) : floats_(RandomFloats(rows * kCols)) {
    const size_t groups = Q8Groups(kCols);
    values_.resize(rows * groups * kQ8Group);
    scales_.resize(rows * groups);
    offsets_.resize(rows * groups);
    bytes_ = {values_.data(), scales_.data(), offsets_.data(), groups, groups};
    QuantizeRows(floats_.data(), kCols, kCols, 0, rows, bytes_);
  }
  const float* floats() const { return floats_.data(); }
  const Q8Rows& bytes() const { return bytes_; }

 private:
  std::vector<float> floats_;
  std::vector<int8_t> values_;
  std::vector<float> scales_;
  std::vector<int32_t> offsets_;
  Q8Rows bytes_;
};

class Measurement {
 public:
  Measurement(ThreadPool& pool, const std::function<bool()>& go_on)
      : pool_(pool), go_on_(go_on), inputs_(kPromptRows), outputs_(kPromptRows * kRows * 8) {}

  Result<KernelRates> Run() {
    KernelRates found;
    found.threads = pool_.size();
    Result<double> read = MeasureRead(pool_, StreamSetBytes(pool_.size()), go_on_);
    if (!read) return Fail(read.error());
    found.read_gb_per_s = *read;
    for (size_t p = 0; p < kPrecisions; ++p) {
      const auto precision = static_cast<Precision>(p);
      KernelRates::Rate& rate = found.rates[p];
      if (Status done = Dense(precision, rate); !done) return Fail(done.error());
      if (Status done = Experts(precision, rate); !done) return Fail(done.error());
    }
    return found;
  }

 private:
  // Median seconds of a call.
  template <typename Call>
  Result<double> Time(const Call& call) {
    if (Status warm = call(); !warm) return Fail(warm.error());
    std::vector<double> samples;
    for (const auto end = Clock::now() + kTime;
         samples.size() < kLeastSamples || Clock::now() < end;) {
      if (go_on_ && !go_on_()) return Fail(ErrorCode::kCancelled, "the measurement was cancelled");
      const auto start = Clock::now();
      if (Status done = call(); !done) return Fail(done.error());
      samples.push_back(SecondsSince(start));
    }
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    return *middle;
  }

  Status Dense(Precision precision, KernelRates::Rate& rate) {
    const WeightKind kind = KindOf(precision);
    const size_t size = PackedBytes(kind, kRows, kCols);
    const size_t matrices = std::max<size_t>(2, kSetBytes / size);
    Result<PageBuffer> weights = PageBuffer::Allocate(matrices * size);
    if (!weights) return Fail(weights.error());
    const std::vector<float> source = RandomFloats(kRows * kCols);
    const auto pack = [&](size_t i) {
      PackRows(kind, source, 0, kRows, kCols, {weights->data() + i * size, size});
    };
    weights->MakeResident();
    Result<double> packing =
        Time([&] { return pool_.ParallelFor(matrices, [&](size_t i, size_t) { pack(i); }); });
    if (!packing) return Fail(packing.error());
    const double floats = static_cast<double>(matrices * kRows * kCols) * sizeof(float);
    rate.pack_gb_per_s = floats / *packing * 1e-9;
    size_t next = 0;
    const auto multiply = [&](size_t n) {
      MatMulJob job{{kind, weights->data() + next * size, kRows, kCols},
                    inputs_.floats(),
                    kCols,
                    outputs_.data(),
                    kRows,
                    n,
                    {inputs_.bytes(), {}}};
      next = (next + 1) % matrices;
      return ParallelMatMul(pool_, {&job, 1});
    };
    Result<double> one = Time([&] { return multiply(1); });
    if (!one) return Fail(one.error());
    rate.dense_gb_per_s = static_cast<double>(size) / *one * 1e-9;
    Result<double> many = Time([&] { return multiply(kPromptRows); });
    if (!many) return Fail(many.error());
    rate.dense_gop_per_s = 2.0 * kRows * kCols * kPromptRows / *many * 1e-9;
    return {};
  }

  // Experts multiply bytes in q8, floats else.
  Status Experts(Precision precision, KernelRates::Rate& rate) {
    const size_t size = NibbleMatrixBytes(kRows, kCols);
    const size_t calls = std::max<size_t>(2, kSetBytes / (size * kLayerExperts));
    Result<PageBuffer> weights = PageBuffer::Allocate(calls * kLayerExperts * size);
    if (!weights) return Fail(weights.error());
    // Scales and nibbles of ordinary values.
    for (size_t i = 0; i < weights->size(); ++i) {
      weights->data()[i] = static_cast<std::byte>(0x60 + i % 31);
    }
    std::vector<ExpertJob> jobs(kLayerExperts);
    size_t next = 0;
    const auto multiply = [&](size_t n) {
      for (size_t e = 0; e < jobs.size(); ++e) {
        ExpertMatrix matrix{ExpertKind::kMxfp4, kRows, kCols};
        matrix.packed =
            reinterpret_cast<const uint8_t*>(weights->data()) + (next * kLayerExperts + e) * size;
        jobs[e] = {matrix, inputs_.floats(), kCols, outputs_.data() + e * n * kRows, kRows, n};
        if (precision == Precision::kQ8) jobs[e].q8 = inputs_.bytes();
      }
      next = (next + 1) % calls;
      return ParallelExpertMatMul(pool_, jobs);
    };
    Result<double> one = Time([&] { return multiply(1); });
    if (!one) return Fail(one.error());
    rate.expert_gb_per_s = static_cast<double>(size * kLayerExperts) / *one * 1e-9;
    Result<double> some = Time([&] { return multiply(kExpertRows); });
    if (!some) return Fail(some.error());
    rate.expert_gop_per_s = 2.0 * kRows * kCols * kExpertRows * kLayerExperts / *some * 1e-9;
    return {};
  }

  ThreadPool& pool_;
  const std::function<bool()>& go_on_;
  Inputs inputs_;
  std::vector<float> outputs_;
};

}  // namespace

Result<KernelRates> MeasureKernels(ThreadPool& pool, const std::function<bool()>& go_on) {
  const FlushDenormals flush;
  try {
    return Measurement(pool, go_on).Run();
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory to measure kernels", "end other programs");
  }
}

}  // namespace mk
