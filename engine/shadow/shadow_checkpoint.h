// Where an interrupted making of shadows goes on.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mk {

struct ShadowCheckpoint {
  std::string fingerprint;  // of the model
  uint32_t version = 2;     // of the file, and its stages
  uint32_t stages = 1;
  uint64_t layers = 0;   // that are done
  uint64_t digest = 0;   // of codebooks and experts so far, see CombineDigests
  double error_sum = 0;  // of the matrices so far; and sums of squares
  double weight_energy = 0;
  double shadow_energy = 0;
  bool operator==(const ShadowCheckpoint&) const = default;

  std::string Encode() const;
  // Nothing for bytes that are no checkpoint.
  static std::optional<ShadowCheckpoint> Decode(const std::string& bytes);
};

// The digest of what one digest is of, followed by what the other is of.
uint64_t CombineDigests(uint64_t before, uint64_t next);

}  // namespace mk
