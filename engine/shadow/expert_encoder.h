// Weights to shadow bytes: the nearest row of the first codebook, the nearest row of the second to
// what is left over.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/parallel/page_buffer.h"
#include "engine/shadow/codebook_trainer.h"

namespace mk {

// Sums of squares of a matrix, or of many.
struct Energies {
  double weights = 0;
  double shadows = 0;
  double rest = 0;  // weights minus shadows

  // 0 where there are no weights.
  double relative_error() const { return weights == 0 ? 0 : std::sqrt(rest / weights); }
  // What gives the shadows the energy of the weights; 1 where they have none.
  double gain() const { return shadows == 0 ? 1 : std::sqrt(weights / shadows); }
};

class ExpertEncoder {
 public:
  // Of one thread.
  struct Buffers {
    std::vector<std::byte> raw;
    std::vector<float> values;  // what is to be encoded, and then what is left over of it
    std::vector<uint8_t> nearest;
    std::vector<std::byte> bytes;
  };

  // `codebooks`: [stages][256][16]. Errors: kOutOfMemory.
  static Result<ExpertEncoder> Create(std::span<const float> codebooks, size_t stages);

  // Encodes buffers.values, [groups][16], as [groups][stages] bytes. Thread-safe.
  Energies Encode(Buffers& buffers, std::span<std::byte> out) const;

 private:
  ExpertEncoder(PageBuffer codebooks, size_t stages)
      : codebooks_(std::move(codebooks)), stages_(stages) {}

  double ShadowEnergy(std::span<const std::byte> bytes) const;

  PageBuffer codebooks_;  // complete (vq1_matmul.h)
  size_t stages_;
};

// Takes from every group its row of the codebook, [256][16].
void SubtractEntries(std::span<const float> entries, std::span<const uint8_t> nearest,
                     std::span<float> values);

}  // namespace mk
