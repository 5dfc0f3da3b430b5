// States of K3 models to and from MKMEM001 (mkmem1.h).

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/model/state.h"
#include "engine/pack/pack_reader.h"

namespace mk {

// Errors as SavePack; kUnsupported for other architectures and for states that the format cannot
// count.
Result<PackInfo> SaveMkmem1(const std::string& path, const Model& model, const StateKeeper& keeper,
                            const Sequence& sequence, const StateKey& key,
                            std::span<const float> logits);

// Tokens of the state in a file, of models without MLA layers 0: the format does not tell. Holds
// all sizes against the model; kIncompatible when they are not its own. `key`: what the sequence is
// to be, apart from its length.
Result<size_t> LengthOfMkmem1(const PackReader& pack, const Model& model, const StateKeeper& keeper,
                              const StateKey& key);

// The sequence of a file whose length was found by LengthOfMkmem1.
Result<std::unique_ptr<Sequence>> RestoreMkmem1(const PackReader& pack, const StateKeeper& keeper,
                                                const StateKey& key);

}  // namespace mk
