#include "engine/bench/roof.h"

#include <cmath>

namespace mk {
namespace {

double ToDouble(uint64_t value) {
  return static_cast<double>(value);
}

// Experts that a step reads, in tokens' worth: E (1 - (1 - k/E)^batch) of k each.
double ExpertShares(const Roof& roof, size_t batch) {
  if (roof.top_k == 0 || roof.experts <= roof.top_k) return 1.0;
  const double part = ToDouble(roof.top_k) / ToDouble(roof.experts);
  return (1.0 - std::pow(1.0 - part, ToDouble(batch))) / part;
}

Limit Lower(double by_reads, double by_arithmetic) {
  if (by_reads <= by_arithmetic) return {Limit::By::kReads, by_reads};
  return {Limit::By::kArithmetic, by_arithmetic};
}

}  // namespace

double Roof::StepBytes(size_t batch) const {
  return ToDouble(work.spine_bytes) + ToDouble(work.expert_bytes) * ExpertShares(*this, batch);
}

double Roof::StepBytesTouched(size_t batch, size_t context) const {
  return StepBytes(batch) + ToDouble(batch) * SequenceBytes(context);
}

double Roof::SequenceBytes(size_t context) const {
  return 2.0 * ToDouble(work.state_bytes) + ToDouble(work.context_bytes) * ToDouble(context);
}

double Roof::DecodeOperations(size_t context) const {
  return 2.0 * (ToDouble(work.multiply_adds) + ToDouble(work.head_multiply_adds) +
                ToDouble(work.context_multiply_adds) * ToDouble(context + 1));
}

double Roof::PrefillOperations(size_t tokens) const {
  const double n = ToDouble(tokens);
  return 2.0 * (ToDouble(work.multiply_adds) * n + ToDouble(work.head_multiply_adds) +
                ToDouble(work.context_multiply_adds) * n * (n + 1) / 2);
}

double Roof::ReadLimit(size_t batch, size_t context) const {
  const double kept = ToDouble(work.spine_bytes) + ToDouble(batch) * SequenceBytes(context);
  const double seconds = kept / (spine_gb_per_s * 1e9) + ToDouble(work.expert_bytes) *
                                                             ExpertShares(*this, batch) /
                                                             (expert_gb_per_s * 1e9);
  return ToDouble(batch) / seconds;
}

Limit Roof::DecodeLimit(size_t batch, size_t context) const {
  return Lower(ReadLimit(batch, context), peak_gop_per_s * 1e9 / DecodeOperations(context));
}

Limit Roof::PrefillLimit(size_t tokens) const {
  const double per_token = PrefillOperations(tokens) / ToDouble(tokens);
  return {Limit::By::kArithmetic, peak_gop_per_s * 1e9 / per_token};
}

Result<Roof> MeasureRoof(const Model& model, Precision precision, ThreadPool& pool,
                         const Ceilings& ceilings, const std::function<bool()>& go_on) {
  Result<TokenWork> work = model.Work(precision);
  if (!work) return Fail(work.error());
  Roof roof;
  roof.precision = precision;
  roof.work = *work;
  roof.experts = model.info().experts;
  roof.top_k = model.info().top_k;
  Result<double> spine = MeasureRead(pool, work->spine_bytes + work->state_bytes, go_on);
  if (!spine) return Fail(spine.error());
  roof.spine_gb_per_s = *spine;
  const bool all_fit =
      work->spine_bytes + work->state_bytes + work->all_expert_bytes <= kCacheSetBytes;
  roof.expert_gb_per_s = all_fit ? *spine : ceilings.read_gb_per_s;
  roof.peak_gop_per_s =
      precision == Precision::kQ8 ? ceilings.int8_gop_per_s : ceilings.fma_gflop_per_s;
  return roof;
}

}  // namespace mk
