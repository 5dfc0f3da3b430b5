// Making the shadows of a model: a codebook is trained on a sample of its routed experts, then
// every expert is encoded, layer after layer, with all processors. What is done is kept, so that a
// run that was ended goes on at the layer that it was at.
//
// Samples: version 1 takes all experts of the first four layers, as the reference engine does, and
// gives its bytes. Version 2 takes some experts of every layer, so that all layers count; a second
// stage is trained on what the first has left over; and all codebooks are multiplied with a gain
// that gives the shadows as much energy as the weights have. Without it a shadow, as a mean of
// weights, gives outputs that are too small by a third, and that costs more than its direction
// does.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/shadow/shadow_format.h"

namespace mk {

inline constexpr uint64_t kShadowSeed = 0x005eed5a100b15e5u;
inline constexpr size_t kShadowSample = 300'000;  // groups of sixteen weights to train on

struct ShadowProgress {
  std::string_view stage;  // "sample" and "shadow" in bytes read, "train" in rounds
  uint64_t done = 0;
  uint64_t total = 0;
};

struct ShadowOptions {
  std::string out;       // "": beside the model
  uint32_t version = 2;  // of the file: 1, 2
  uint32_t stages = 2;   // 1 in version 1
  int threads = 1;
  size_t sample = kShadowSample;
  // May be empty. Called between experts; false: kCancelled.
  std::function<bool(const ShadowProgress&)> progress;
  // What `save` was given by an earlier run; of no use, and not used, when model, options or the
  // bytes that were kept have changed.
  std::string checkpoint;
  // Receives what a later run can go on from, at the end of layers; may be empty.
  std::function<void(std::string checkpoint)> save;
  std::chrono::milliseconds save_after{1000};  // at the earliest since the last time
};

struct ShadowReport {
  std::string path;
  ShadowInfo info;            // relative_error and gain in version 1 too
  std::string fingerprint;    // of the model
  uint64_t expert_bytes = 0;  // of the experts in the model file
  uint64_t matrices = 0;
  uint64_t resumed_layers = 0;  // done by an earlier run
  double seconds = 0;           // of this run
};

// Errors: those of MkimFile::Open; kInvalidArgument for a model without experts, a target that is
// another kind of file, or one that somebody else is making; kCancelled; kIo, with the disk named
// as full when it is. After kCancelled the unfinished file is kept if there is a checkpoint that
// counts on it, after other errors nothing is left.
Result<ShadowReport> BuildShadows(const std::string& model_path, const ShadowOptions& options);

}  // namespace mk
