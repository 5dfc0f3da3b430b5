// Where an interrupted absorb goes on: the checkpoint of its job. What it says stays the same from
// the first to the last; how far the text was read is told by the pack that it names.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mk::daemon {

struct AbsorbCheckpoint {
  std::string pack;                  // file of what was read so far
  uint64_t before = 0;               // tokens of the state that the text comes on top of
  uint64_t digest = 0;               // of all token ids of the text
  std::vector<std::string> parents;  // as RunPacks
  bool operator==(const AbsorbCheckpoint&) const = default;
};

std::string Encode(const AbsorbCheckpoint& checkpoint);
// Nothing for bytes that are no checkpoint.
std::optional<AbsorbCheckpoint> DecodeAbsorbCheckpoint(const std::string& bytes);

}  // namespace mk::daemon
