// Files of the prefix cache: packs (MKMEM002) with tokens, and mostly with logits.
//
// Believes nothing that is in a file: the header's counts are held against limits before memory
// follows from them, and a file is taken only if it is of the model, of a text, and whole.
// Functions without shared state; they read and write files and take their time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/prefix_kind.h"
#include "engine/base/result.h"
#include "engine/model/model.h"

namespace mk::daemon {

// What a file is the state of.
struct PrefixHead {
  PrefixKind kind;
  std::vector<int32_t> tokens;
  bool logits = false;
};

// Name of the file of such a state, without folder.
std::string PrefixFileName(const PrefixKind& kind, std::span<const int32_t> tokens);

// Reads header, table and token section. Errors: those of PackReader, kIncompatible (another model,
// or no state of a text), kContextOverflow (more tokens than a run may have).
Result<PrefixHead> ReadPrefixHead(const std::string& path, const ModelInfo& model);

struct PrefixState {
  std::unique_ptr<Sequence> state;
  std::vector<float> logits;
};
// Reads it all. `head`: what the file is known to hold; anything else is kCorrupt. Errors of
// LoadPack.
Result<PrefixState> ReadPrefixState(const std::string& path, const Model& model,
                                    const PrefixHead& head);

// Writes a file that appears whole or not at all; its length. Errors of SavePack.
Result<uint64_t> WritePrefixFile(const std::string& path, const Model& model,
                                 std::span<const int32_t> tokens, std::span<const float> logits,
                                 const Sequence& state);

// Whether an error is the file's own fault and will not go away: it is to be set aside.
bool IsBadFile(ErrorCode code);

}  // namespace mk::daemon
