// The prefix cache as clients see it: the ops `pck_info` and `pck_clean`. Included by messages.h.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mk::protocol {

// A state of the beginning of a prompt.
struct PrefixStatus {
  uint64_t tokens = 0;
  std::string precision;
  bool chunked_prefill = true;
  bool logits = false;        // a prompt that is this and no more needs no forward pass
  uint64_t memory_bytes = 0;  // 0: it is on disk only
  uint64_t own_bytes = 0;     // of them, those that no other state shares
  uint64_t disk_bytes = 0;    // 0: it is in memory only
  double value = 0;           // one and its uses, which fade; the least goes first
  bool operator==(const PrefixStatus&) const = default;
};

struct PrefixModel {
  std::string model;        // path; "": not known
  std::string fingerprint;  // of a model that is not loaded its first 16 digits
  bool loaded = false;
  uint64_t memory_states = 0;
  uint64_t disk_files = 0;
  uint64_t disk_bytes = 0;
  uint64_t refused_files = 0;        // of the files: kept to be looked at, not used
  std::vector<PrefixStatus> states;  // of files those whose tokens are known; longest first
  bool operator==(const PrefixModel&) const = default;
};

struct PckInfoArgs {
  std::string model;  // path, alias, name, or digits of the fingerprint; "": all
  bool operator==(const PckInfoArgs&) const = default;
};
struct PckCleanArgs {
  std::string model;  // as above
  bool operator==(const PckCleanArgs&) const = default;
};

struct PckInfoDone {
  std::vector<PrefixModel> models;
  std::string folder;
  std::string trouble;  // why nothing is written to disk now; "": nothing is wrong
  std::map<std::string, uint64_t> totals;  // of all models; those that end in _limit are bytes
  bool operator==(const PckInfoDone&) const = default;
};
struct PckCleanDone {
  uint64_t states = 0;  // forgotten in memory
  uint64_t bytes = 0;
  uint64_t files = 0;
  uint64_t file_bytes = 0;
  bool operator==(const PckCleanDone&) const = default;
};

}  // namespace mk::protocol
