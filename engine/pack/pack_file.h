// Packs as files: saving the state of a sequence, and making a sequence of one.
//
// A saved pack appears whole or not at all (AtomicFile). A pack is taken only if every byte of it
// is what was written, if it belongs to the model, and if it holds what a state of the model holds;
// the sequence then goes on with the same bits. Errors of reading, all with the path and the
// reason:
//
//   kInvalidArgument   not a pack, or not a regular file
//   kUnsupported       a newer version of the format, an unknown part, a model that keeps no states
//   kCorrupt           torn, with bits flipped, or with values that no state has
//   kIncompatible      of another model, or of another precision than the one that was asked for
//   kContextOverflow   more tokens than the limit
//   kNotFound, kPermissionDenied, kIo, kOutOfMemory
//
// Thread safety: functions without shared state. A sequence that is saved must not be written
// meanwhile; save a clone.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/model.h"
#include "engine/pack/pack_format.h"

namespace mk {

// What a pack holds beside the state.
struct PackContents {
  // The tokens whose state it is, all of them, or none when they are not known. Packs made by
  // arithmetic have none, so that nobody takes their state for that of a text.
  std::vector<int32_t> tokens;
  // For the token after the last one, [vocab]; may be empty.
  std::vector<float> logits;
  // Where it comes from: a JSON object; may be empty.
  std::string lineage;
};

struct SavePackOptions {
  PackFormat format = PackFormat::kMkmem2;
  // Whether a pack of this name may be replaced. Files that are no packs never are.
  bool replace = true;
};

// Errors: kInvalidArgument (tokens or logits that are not the sequence's, a target that must not be
// replaced), those of StateKeeper::Save and of AtomicFile (a full disk is named as such), and
// kUnsupported for what MKMEM001 cannot hold.
Result<PackInfo> SavePack(const std::string& path, const Model& model, const Sequence& sequence,
                          const PackContents& contents, const SavePackOptions& options = {});

struct LoadPackOptions {
  // Of the sequence. Packs of MKMEM001 can be continued in any precision, exact by default; others
  // in their own only. The model must be prepared for it.
  std::optional<Precision> precision;
  size_t max_tokens = size_t{1} << 20;  // of the sequence
};

struct LoadedPack {
  PackInfo info;
  std::unique_ptr<Sequence> sequence;
  PackContents contents;
};

Result<LoadedPack> LoadPack(const std::string& path, const Model& model,
                            const LoadPackOptions& options = {});

// Reads header and table only.
Result<PackInfo> DescribePack(const std::string& path);
// Reads every byte and holds it against its checksum. MKMEM001 has none: its values must be finite.
Result<PackInfo> VerifyPack(const std::string& path);

}  // namespace mk
