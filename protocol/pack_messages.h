// Memory packs: what is told of one that was written, and absorb. Included by job_messages.h.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/model_selector.h"

namespace mk::protocol {

// A memory pack that was written.
struct SavedPack {
  std::string path;
  std::string format;    // "MKMEM001", "MKMEM002"
  std::string state_id;  // "" in MKMEM001
  uint64_t tokens = 0;   // that its state has read
  uint64_t bytes = 0;
  double save_ms = 0;
  bool operator==(const SavedPack&) const = default;
};

// Reads a text into a pack, in the background. Packs are paths or names, as in RunArgs.
struct AbsorbArgs {
  ModelSelector model;
  std::string text;      // path of a file of any length, UTF-8
  bool spooled = false;  // it was made for this, in the state folder: it is removed in the end
  std::string save;
  uint32_t save_format = 2;
  std::string memory;  // the text comes on top of this; "": of nothing
  std::string precision = kAutoPrecision;
  bool chunked_prefill = true;
  bool operator==(const AbsorbArgs&) const = default;
};

struct AbsorbDone {
  SavedPack saved;
  uint64_t tokens = 0;  // of the text
  uint64_t unk = 0;     // those that stand for text that the vocabulary cannot spell
  double seconds = 0;   // of this run of the job
  std::string precision;
  std::string fingerprint;
  std::string model_path;
  std::vector<std::string> warnings;
  bool operator==(const AbsorbDone&) const = default;
};

}  // namespace mk::protocol
