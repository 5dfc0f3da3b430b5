// TokenWork: what one token costs at least, whatever the kernels do: the weights that must be read
// and the multiply-adds that must be done. Benchmarks hold measured speeds against it.

#pragma once

#include <cstdint>

namespace mk {

// Of one token in one precision. Bytes as they lie in memory, zero rows that fill a panel included.
struct TokenWork {
  // Dense weights, read once per decoding step: layers, head, and the token's embedding row.
  uint64_t spine_bytes = 0;
  // Routed experts that one token chooses, over all layers.
  uint64_t expert_bytes = 0;
  // All routed experts of the model, of which a step reads some.
  uint64_t all_expert_bytes = 0;
  // Recurrent state of a sequence: read and written once per decoded token.
  uint64_t state_bytes = 0;
  // Cache rows that a decoded token reads, per token of its context.
  uint64_t context_bytes = 0;

  // Without the head and without what grows with the context.
  uint64_t multiply_adds = 0;
  // One row of logits.
  uint64_t head_multiply_adds = 0;
  // Per token of its context.
  uint64_t context_multiply_adds = 0;
};

}  // namespace mk
