// MachineProfile: what was measured of a machine, for predictions; kept as JSON.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/bench/kernel_rates.h"
#include "engine/plan/disk_probe.h"

namespace mk {

// What a layer costs beside its weights, by the smallest model of an architecture.
struct LayerCost {
  double step_s = 0;  // of a decoding step
  double row_s = 0;   // of a token of a prompt
};

// A model that was run with all of it in memory.
struct ModelSpeed {
  std::string fingerprint;
  Precision precision = Precision::kExact;
  size_t threads = 0;
  double decode_s = 0;  // of a token
  double prompt_s = 0;  // of a token of a prompt
};

struct MachineProfile {
  std::string processor;
  KernelRates kernels;                           // with `kernels.threads` threads
  std::map<std::string, LayerCost> layer_costs;  // by architecture
  std::vector<DiskProbe> disks;                  // one per device, the one measured last at the end
  std::vector<ModelSpeed> models;

  // The disk of a device; else the one that was measured last.
  std::optional<DiskProbe> Disk(uint64_t device) const;
  void SetDisk(const DiskProbe& disk);
  const ModelSpeed* Find(const std::string& fingerprint, Precision precision, size_t threads) const;
  void SetModel(ModelSpeed speed);
};

std::string ToJsonText(const MachineProfile& profile);
// Errors: kCorrupt: it is no profile, of another version, or has numbers that cannot be.
Result<MachineProfile> ParseProfile(std::string_view text, const std::string& path);

// Nothing when there is no such file. Errors: kCorrupt, those of reading.
Result<std::optional<MachineProfile>> ReadProfile(const std::string& path);
Status WriteProfile(const std::string& path, const MachineProfile& profile);

}  // namespace mk
