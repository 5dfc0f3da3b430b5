// Shadows of a model's experts: making them, as a job. Included by job_messages.h.

#pragma once

#include <cstdint>
#include <string>

namespace mk::protocol {

struct ShadowArgs {
  std::string model;
  std::string out;       // path of the file to make; "": beside the model
  uint32_t version = 2;  // of its format; 1: of the reference engine
  uint32_t stages = 2;   // bytes per sixteen weights; 1 in version 1
  uint32_t threads = 0;  // 0: the daemon's setting
  bool operator==(const ShadowArgs&) const = default;
};

struct ShadowDone {
  std::string path;
  std::string model_path;
  std::string format;       // "MKSH0001", "MKSH0002"
  std::string fingerprint;  // of the model
  uint64_t stages = 0;
  uint64_t layers = 0;
  uint64_t experts = 0;  // of a layer
  uint64_t file_bytes = 0;
  uint64_t expert_bytes = 0;    // of the experts in the model file
  double relative_error = 0;    // mean of all matrices, before the gain
  double gain = 1;              // what gives the shadows the energy of the weights
  uint64_t resumed_layers = 0;  // that an earlier run of the job had done
  double seconds = 0;           // of this run of the job
  bool operator==(const ShadowDone&) const = default;
};

}  // namespace mk::protocol
