// JobRecord: what is kept of a job on disk, as one msgpack map.
//
// Thread-safe. What is read may have been damaged or made up by somebody: decoding never throws,
// never reads outside the bytes, and allocates no more than a small multiple of their number.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "protocol/job_messages.h"

namespace mk::protocol {

inline constexpr uint32_t kJobRecordVersion = 1;
inline constexpr size_t kMaxCheckpointBytes = size_t{4} << 20;

struct JobRecord {
  uint32_t version = kJobRecordVersion;
  std::string id;
  JobSpec spec;      // with whole paths, and nothing left to the daemon's settings
  std::string what;  // as JobStatus
  JobState state = JobState::kQueued;
  std::string asked_by;
  bool detached = false;
  uint64_t runs = 0;
  uint64_t created_ms = 0;  // since 1970
  uint64_t started_ms = 0;  // 0: not yet
  uint64_t ended_ms = 0;    // 0: not yet
  std::string phase;
  uint64_t done = 0;
  uint64_t total = 0;
  std::string unit;
  uint64_t kept = 0;              // progress that the checkpoint holds
  std::string checkpoint;         // of the kind's own form; "": none
  JobResult result;               // of one that is done
  std::optional<JobError> error;  // of one that failed, was cancelled or interrupted
  bool operator==(const JobRecord&) const = default;
};

// How many kinds of work it asks for.
int KindsIn(const JobSpec& spec);

// "verify", "build", "bench", "absorb", "shadow", "eval", "compare"; "": none of them.
std::string_view KindOf(const JobSpec& spec);

// The files that it is about.
std::vector<std::string> PathsIn(const JobSpec& spec);

// Bytes of text that are not UTF-8 are replaced.
std::string EncodeJobRecord(const JobRecord& record);
// Errors: kUnsupportedVersion for one of a later version, kBadRequest, naming what is wrong.
Result<JobRecord> DecodeJobRecord(std::string_view bytes);

}  // namespace mk::protocol
