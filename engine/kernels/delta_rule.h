// The gated delta rule: the recurrence of Kimi Delta Attention, one head of one sequence.
//
// State S [dim][dim], S[i][j], i the key channel, j the value channel. One token with query q, key
// k, value v, log-decay g (each [dim], g <= 0) and write strength beta:
//
//   S[i][j] <- e^{g_i} S[i][j]                    decay
//   delta_j  = v_j - sum_i k_i S[i][j]            error of the prediction
//   S[i][j] <- S[i][j] + (beta k_i) delta_j       write
//   o_j      = sum_i q_i S[i][j]                  read, after the write
//
// Every sum is one chain of fused multiply-adds over ascending i (or ascending tokens) for each j,
// so the bits depend neither on the width of the vectors nor on how tokens are cut into calls of
// DeltaRuleSteps. DeltaRuleChunk computes the same function as matrix products and rounds
// differently.

#pragma once

#include <cstddef>
#include <span>

namespace mk {

// Tokens of a chunk.
inline constexpr size_t kDeltaRuleChunk = 64;

// Inputs of consecutive tokens; row t of a matrix starts at t * its `ld` floats. Queries and keys
// are normalised and scaled by the caller.
struct DeltaRuleInput {
  size_t dim = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  size_t ld = 0;                 // of q, k and v
  const float* decay = nullptr;  // e^g, in [0, 1]
  size_t ld_decay = 0;
  const float* beta = nullptr;  // of the first token
  size_t ld_beta = 1;
};

// `tokens` steps, one after the other, from the state `from` [dim][dim]: out [tokens][ld_out] is
// written, and `state` becomes the one after them. `state` may be `from`, or apart from it, which
// then stays as it is; out is apart from all inputs.
void DeltaRuleSteps(const DeltaRuleInput& in, size_t tokens, const float* from, float* state,
                    float* out, size_t ld_out);
// The same without reading: needs no queries. At least one token.
void DeltaRuleWrites(const DeltaRuleInput& in, size_t tokens, const float* from, float* state);

// Floats of scratch that DeltaRuleChunk needs.
size_t DeltaRuleScratch(size_t dim);

// Exactly kDeltaRuleChunk tokens as matrix products. Decays enter as running products of e^g only,
// all <= 1, so any decay is safe; nothing is ever divided by a decay.
void DeltaRuleChunk(const DeltaRuleInput& in, float* state, float* out, size_t ld_out,
                    std::span<float> scratch);

}  // namespace mk
