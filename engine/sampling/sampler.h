// Sampler: one row of logits to one token.
//
// Greedy (temperature 0) takes the largest logit, the lowest id among equals. Otherwise, with
// m = max l and q_i = exp((l_i - m) / temperature), candidates are ordered by q descending, lower
// id first among equals, and cut, in this order:
//   top_k   the first k
//   top_p   the shortest prefix whose share of the sum of q reaches top_p, at least one
//   min_p   those with q_i >= min_p, that is, min_p times the largest
//   typical_p  of these, with p_i = q_i / sum q and H = -sum p log p, ordered by |-log p_i - H|,
//   the
//           shortest prefix whose share reaches typical_p (Meister et al. 2022, "Locally typical
//           sampling")
// One of the rest is drawn with probability q_i / sum of their q. What processing.h lists runs
// before all of this, greedy or not, on a copy of the row.
//
// A draw depends on the seed and its index alone, so it is the same however tokens are batched or
// verified ahead, and a conversation continues from a stored index.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/sampling/logit_processor.h"
#include "engine/sampling/processing.h"
#include "engine/sampling/random.h"

namespace mk {

struct SamplingOptions {
  float temperature = 0.0f;  // 0 = greedy, else [0.0001, 100]
  uint32_t top_k = 0;        // 0 = off
  float top_p = 1.0f;        // (0, 1]; 1 = off
  float min_p = 0.0f;        // [0, 1]; 0 = off
  float typical_p = 1.0f;    // (0, 1]; 1 = off, as it must be with kCompat1
  uint64_t seed = 0;
  RandomProfile random = RandomProfile::kPhilox;
  uint64_t first_draw = 0;  // draws that the conversation used up before, at most 2^24
  ProcessingOptions processing;

  bool greedy() const { return temperature == 0.0f; }
};

// kInvalidArgument for the first option out of its range, naming it and the range.
Status ValidateSampling(const SamplingOptions& options);

struct Picked {
  int32_t id = 0;
  float probability = 1.0f;  // among the candidates left after the cuts; 1 when greedy
};

// One per request, one thread at a time. Allocates when the first row comes, not afterwards.
class Sampler {
 public:
  // `options` must have passed ValidateSampling, and ValidateTokens for the rows to come. `prompt`:
  // what stands before the first emitted token; it is not needed afterwards.
  explicit Sampler(const SamplingOptions& options, std::span<const int32_t> prompt = {});

  // Selects from `logits` [vocab]. `draw` counts selections of this request from 0; neither it nor
  // `emitted` need grow. Errors: kNumeric when a logit is NaN or +inf or none is finite.
  Result<Picked> Pick(std::span<const float> logits, uint64_t draw,
                      std::span<const int32_t> emitted = {});

  const SamplingOptions& options() const { return options_; }

 private:
  struct Candidate {
    float q = 0.0f;
    int32_t id = 0;
  };

  // The first `count` candidates, and the sum of their q.
  struct Kept {
    size_t count = 0;
    double mass = 0.0;
  };

  Picked Draw(std::span<const float> logits, float maximum, uint64_t draw);
  Picked DrawPlain(double uniform);
  Picked DrawCompat(double uniform);
  void Sort(size_t count);
  Kept CutPlain();
  Kept CutTypical(Kept kept);

  SamplingOptions options_;
  Random random_;
  std::vector<std::unique_ptr<LogitProcessor>> processors_;
  std::vector<float> processed_;       // copy of the row, when there are processors
  std::vector<Candidate> candidates_;  // [vocab]; the first sorted_ are in order
  size_t sorted_ = 0;
  std::vector<std::pair<double, Candidate>> deviations_;  // with typical_p
};

// Index of the largest logit, the lowest among equals. Errors: kNumeric as in Sampler::Pick.
Result<int32_t> Argmax(std::span<const float> logits);

}  // namespace mk
