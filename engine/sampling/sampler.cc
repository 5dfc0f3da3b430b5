#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace mk {
namespace {

// Far beyond the tokens of any conversation; kCompat1 steps up to here in some 20 ms.
constexpr uint64_t kMaxFirstDraw = uint64_t{1} << 24;
constexpr size_t kFirstSorted = 256;

struct Maximum {
  float value = -std::numeric_limits<float>::infinity();
  size_t index = 0;
};

// The first largest value. NaN and +inf are errors, and so is a row of -inf.
Result<Maximum> FindMaximum(std::span<const float> logits) {
  Maximum best;
  bool nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    nan |= std::isnan(logits[i]);
    if (logits[i] > best.value) best = {logits[i], i};
  }
  if (nan) return Fail(ErrorCode::kNumeric, "a logit is not a number");
  if (std::isinf(best.value)) {
    return Fail(ErrorCode::kNumeric, best.value > 0 ? "a logit is infinite" : "no logit is finite");
  }
  return best;
}

}  // namespace

Status ValidateSampling(const SamplingOptions& options) {
  const auto bad = [](std::string_view what, std::string_view range) {
    return Fail(ErrorCode::kInvalidArgument, std::string(what).append(" must be ").append(range));
  };
  if (!(options.temperature >= 0.0f && options.temperature <= 100.0f)) {
    return bad("temperature", "in [0, 100]");
  }
  if (options.temperature > 0.0f && options.temperature < 1e-4f) {
    return bad("temperature", "0 (greedy) or at least 0.0001");
  }
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) return bad("top_p", "in (0, 1]");
  if (!(options.min_p >= 0.0f && options.min_p <= 1.0f)) return bad("min_p", "in [0, 1]");
  if (!(options.typical_p > 0.0f && options.typical_p <= 1.0f))
    return bad("typical_p", "in (0, 1]");
  if (options.typical_p < 1.0f && options.random == RandomProfile::kCompat1) {
    return bad("typical_p", "1 with the random profile compat-1");
  }
  if (options.first_draw > kMaxFirstDraw) return bad("first_draw", "at most 2^24");
  return ValidateProcessing(options.processing);
}

Result<int32_t> Argmax(std::span<const float> logits) {
  Result<Maximum> best = FindMaximum(logits);
  if (!best) return Fail(best.error());
  return static_cast<int32_t>(best->index);
}

Sampler::Sampler(const SamplingOptions& options, std::span<const int32_t> prompt)
    : options_(options),
      random_(options.random, options.seed),
      processors_(MakeProcessors(options.processing, prompt)) {}

Result<Picked> Sampler::Pick(std::span<const float> logits, uint64_t draw,
                             std::span<const int32_t> emitted) {
  if (!processors_.empty()) {
    processed_.assign(logits.begin(), logits.end());
    for (const auto& processor : processors_) processor->Apply(emitted, processed_);
    logits = processed_;
  }
  Result<Maximum> best = FindMaximum(logits);
  if (!best) return Fail(best.error());
  if (options_.greedy()) return Picked{static_cast<int32_t>(best->index), 1.0f};
  return Draw(logits, best->value, options_.first_draw + draw);
}

Picked Sampler::Draw(std::span<const float> logits, float maximum, uint64_t draw) {
  const float inverse = 1.0f / options_.temperature;
  candidates_.resize(logits.size());
  sorted_ = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_[i] = {std::exp((logits[i] - maximum) * inverse), static_cast<int32_t>(i)};
  }
  if (options_.top_k > 0 && options_.top_k < candidates_.size()) {
    Sort(options_.top_k);
    candidates_.resize(options_.top_k);
    sorted_ = candidates_.size();
  }
  const double uniform = random_.Uniform(draw);
  return options_.random == RandomProfile::kCompat1 ? DrawCompat(uniform) : DrawPlain(uniform);
}

// Puts at least the first `count` candidates in order. The order is total, so sorting in parts
// gives what sorting everything would.
void Sampler::Sort(size_t count) {
  if (count <= sorted_) return;
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.q != b.q ? a.q > b.q : a.id < b.id;
  };
  const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted_);
  const size_t wanted = std::min(candidates_.size(), std::max(count, kFirstSorted));
  const auto end = candidates_.begin() + static_cast<ptrdiff_t>(wanted);
  if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), before);
  std::sort(begin, end, before);
  sorted_ = wanted;
}

// Sums in f64. The nucleus is found by sorting only as far as it reaches.
Sampler::Kept Sampler::CutPlain() {
  Kept kept{candidates_.size(), 0.0};
  for (const Candidate& candidate : candidates_) kept.mass += candidate.q;
  if (options_.top_p < 1.0f) {
    const double target = static_cast<double>(options_.top_p) * kept.mass;
    double sum = 0.0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (i >= sorted_) Sort(2 * i + 1);
      sum += candidates_[i].q;
      if (sum >= target) {
        kept = {i + 1, sum};
        break;
      }
    }
  }
  if (options_.min_p > 0.0f) {
    double sum = 0.0;
    size_t i = 0;
    for (; i < kept.count; ++i) {
      if (i >= sorted_) Sort(2 * i + 1);
      if (candidates_[i].q < options_.min_p) break;
      sum += candidates_[i].q;
    }
    kept = {i, sum};
  }
  return options_.typical_p < 1.0f ? CutTypical(kept) : kept;
}

// Leaves the first candidates ordered by q again.
Sampler::Kept Sampler::CutTypical(Kept kept) {
  Sort(kept.count);
  const auto begin = candidates_.begin();
  const auto end = begin + static_cast<ptrdiff_t>(kept.count);
  double entropy = 0.0;  // in nats
  for (auto one = begin; one != end && one->q > 0.0f; ++one) {
    const double p = one->q / kept.mass;
    entropy -= p * std::log(p);
  }
  deviations_.clear();
  for (auto one = begin; one != end; ++one) {
    deviations_.emplace_back(std::abs(-std::log(one->q / kept.mass) - entropy), *one);
  }
  std::stable_sort(deviations_.begin(), deviations_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const double target = static_cast<double>(options_.typical_p) * kept.mass;
  Kept left;
  while (left.count < kept.count && left.mass < target) {
    candidates_[left.count] = deviations_[left.count].second;
    left.mass += candidates_[left.count++].q;
  }
  sorted_ = 0;
  candidates_.resize(left.count);
  Sort(left.count);
  return left;
}

Picked Sampler::DrawPlain(double uniform) {
  const auto [kept, mass] = CutPlain();
  const double point = uniform * mass;
  double sum = 0.0;
  size_t chosen = 0;
  for (size_t i = 0; i < kept; ++i) {
    if (i >= sorted_) Sort(2 * i + 1);
    if (candidates_[i].q == 0.0f) break;  // sorted: nothing but zeros follows
    sum += candidates_[i].q;
    chosen = i;
    if (sum > point) break;
  }
  return {candidates_[chosen].id, static_cast<float>(candidates_[chosen].q / mass)};
}

// Everything in f32, sums in sorted order, as recorded runs have it. The largest q is 1, so terms
// below 2^-24 leave the running total as it is and need no sorting to be summed.
Picked Sampler::DrawCompat(double uniform) {
  const auto counts = [](const Candidate& candidate) { return candidate.q >= 0x1p-24f; };
  Sort(static_cast<size_t>(std::count_if(candidates_.begin(), candidates_.end(), counts)));
  float total = 0.0f;
  for (size_t i = 0; i < sorted_; ++i) total += candidates_[i].q;
  size_t kept = candidates_.size();
  float share = 0.0f;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (i >= sorted_) Sort(candidates_.size());
    share += candidates_[i].q / total;
    if (share >= options_.top_p) {
      kept = i + 1;
      break;
    }
  }
  if (options_.min_p > 0.0f) {
    size_t i = 1;
    while (i < kept && candidates_[i].q >= options_.min_p) ++i;
    kept = i;
  }
  float mass = 0.0f;
  for (size_t i = 0; i < kept; ++i) mass += candidates_[i].q;
  float rest = static_cast<float>(uniform) * mass;
  size_t chosen = kept - 1;
  for (size_t i = 0; i < kept; ++i) {
    rest -= candidates_[i].q;
    if (rest <= 0.0f) {
      chosen = i;
      break;
    }
  }
  return {candidates_[chosen].id, candidates_[chosen].q / mass};
}

}  // namespace mk
