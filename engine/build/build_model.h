// Makes model files offline: full depth, small width, values from a counter-based generator.
//
// A file is a function of (architecture, preset, overrides, seed, alignment): the same bytes on
// every machine, with every number of threads.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_writer.h"

namespace mk {

struct BuildOptions {
  std::string arch = "k3";
  std::string preset = "nano";  // see PresetNames()
  std::string path;             // "" = "mk-<arch>-<preset>.bin"
  uint64_t seed = 0;
  // key = JSON value: a dimension of the config or a gain. Unknown keys are errors.
  std::vector<std::pair<std::string, std::string>> overrides;
  ExpertAlign align = ExpertAlign::kAuto;
  int threads = 1;
  bool dry_run = false;  // sizes only, nothing is written
  bool force = false;    // replace a file that exists
};

struct BuildReport {
  std::string path;
  uint64_t tensors = 0;
  uint64_t parameters = 0;
  uint64_t file_bytes = 0;
  uint64_t expert_bytes = 0;
  uint64_t spine_bytes = 0;
  double seconds = 0;
};

// Presets of an architecture; empty for one that cannot be built.
std::vector<std::string> PresetNames(const std::string& arch);

// `progress` is called with 0..1, from one thread at a time; it returns false to give up
// (kCancelled), and nothing is left behind. It may be empty. Errors: kInvalidArgument (unknown
// architecture, preset, key or value; the file exists), kIo (the disk is full), kPermissionDenied.
Result<BuildReport> BuildModel(const BuildOptions& options,
                               const std::function<bool(double)>& progress = {});

}  // namespace mk
