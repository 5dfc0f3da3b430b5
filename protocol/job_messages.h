// Long work: what can be asked for, how far it is, what it gave. Included by messages.h.
//
// The ops `verify`, `build`, `bench`, `absorb`, `shadow`, `eval` and `compare` start a job, stay
// with it to its end and answer with its result; a client that leaves ends it. `job_start` starts
// one that belongs to nobody: it lives on, and any number of clients may attach to it, as they may
// to the others.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bench_messages.h"
#include "protocol/eval_messages.h"
#include "protocol/pack_messages.h"
#include "protocol/shadow_messages.h"

namespace mk::protocol {

// ---------------------------------------------------------------- kinds of work

struct VerifyArgs {
  std::string model;
  bool operator==(const VerifyArgs&) const = default;
};

struct BuildArgs {
  std::string arch = "k3";
  std::string preset = "nano";
  std::string out;  // path of the file to make
  uint64_t seed = 0;
  std::vector<std::string> set;       // "key=value"
  std::string expert_align = "auto";  // "auto", "64", "4096"
  uint32_t threads = 0;               // 0: the daemon's setting
  bool dry_run = false;
  bool force = false;
  bool operator==(const BuildArgs&) const = default;
};

struct VerifyProblem {
  std::string tensor;  // "": the file as a whole
  std::string message;
  uint64_t count = 0;
  bool operator==(const VerifyProblem&) const = default;
};
struct VerifyDone {
  std::string path;
  bool ok = false;
  uint64_t file_bytes = 0;
  uint64_t tensors = 0;
  uint64_t values_checked = 0;
  std::string xxh3_128;
  std::string content_sha256;
  bool digest_recorded = false;
  uint64_t problems_total = 0;
  std::vector<VerifyProblem> problems;  // the first of them
  std::vector<std::string> warnings;
  bool operator==(const VerifyDone&) const = default;
};

struct BuildDone {
  std::string path;
  bool written = false;  // false: dry run
  uint64_t tensors = 0;
  uint64_t parameters = 0;
  uint64_t file_bytes = 0;
  uint64_t expert_bytes = 0;
  uint64_t spine_bytes = 0;
  double seconds = 0;
  bool operator==(const BuildDone&) const = default;
};

// What a job does: exactly one of them.
struct JobSpec {
  std::optional<VerifyArgs> verify;
  std::optional<BuildArgs> build;
  std::optional<BenchArgs> bench;
  std::optional<AbsorbArgs> absorb = std::nullopt;
  std::optional<ShadowArgs> shadow = std::nullopt;
  std::optional<EvalArgs> eval = std::nullopt;
  std::optional<CompareArgs> compare = std::nullopt;
  bool operator==(const JobSpec&) const = default;
};

// What a job gave: the member of its kind, once it is done.
struct JobResult {
  std::optional<VerifyDone> verify;
  std::optional<BuildDone> build;
  std::optional<BenchDone> bench;
  std::optional<AbsorbDone> absorb = std::nullopt;
  std::optional<ShadowDone> shadow = std::nullopt;
  std::optional<EvalDone> eval = std::nullopt;
  std::optional<CompareDone> compare = std::nullopt;
  bool operator==(const JobResult&) const = default;
};

// ---------------------------------------------------------------- jobs

enum class JobState {
  kQueued,
  kRunning,
  kDone,         // there is a result
  kFailed,       // there is an error
  kCancelled,    // somebody asked for it
  kInterrupted,  // the daemon ended before it did; it can be resumed
};
inline constexpr size_t kJobStates = 6;
std::string_view NameOf(JobState state);  // "queued", "running", "done", ...
std::optional<JobState> JobStateFromName(std::string_view name);
// Neither queued nor running: nothing happens to it any more by itself.
inline bool IsEnded(JobState state) {
  return state != JobState::kQueued && state != JobState::kRunning;
}

// Ids of jobs: so many lower-case letters and digits, of which the first is a letter.
inline constexpr size_t kJobIdBytes = 6;
bool IsJobId(std::string_view text);

struct JobError {
  std::string code;  // of ErrorCode
  std::string message;
  std::string hint;
  bool operator==(const JobError&) const = default;
};

struct JobStatus {
  std::string id;
  std::string kind;   // "verify", "build", "bench", "absorb", "shadow", "eval", "compare"
  std::string what;   // one line: the file that it is about, and how
  std::string state;  // see JobState
  std::string phase;  // of a running one: "verify", "load", ...; of a queued one what it waits for
  uint64_t done = 0;
  uint64_t total = 0;  // 0: not known
  std::string unit;    // "bytes", "percent", "tokens"
  uint64_t kept = 0;   // of `done`: what need not be done again when it is resumed
  std::optional<uint64_t> eta_ms;
  std::string asked_by;     // the client that started it
  bool detached = false;    // lives on without its client
  uint64_t attached = 0;    // clients that watch it
  uint64_t queue = 0;       // of a queued one: jobs before it
  uint64_t runs = 0;        // how often it was begun
  bool resumable = false;   // goes on where it was, not from the start
  bool saved = false;       // its record on disk is as told here, but for the progress
  uint64_t created_ms = 0;  // since 1970
  uint64_t started_ms = 0;  // 0: not yet
  uint64_t ended_ms = 0;    // 0: not yet
  uint64_t age_ms = 0;      // since it was created
  std::optional<JobError> error;
  bool operator==(const JobStatus&) const = default;
};

struct JobReport {
  JobStatus job;
  JobResult result;
  bool operator==(const JobReport&) const = default;
};

// ---------------------------------------------------------------- requests

struct JobsArgs {
  bool operator==(const JobsArgs&) const = default;
};
struct JobStartArgs {
  JobSpec spec;
  bool operator==(const JobStartArgs&) const = default;
};
struct JobAttachArgs {
  std::string id;
  bool operator==(const JobAttachArgs&) const = default;
};
struct JobShowArgs {
  std::string id;
  bool operator==(const JobShowArgs&) const = default;
};
struct JobCancelArgs {
  std::string id;
  bool operator==(const JobCancelArgs&) const = default;
};
struct JobResumeArgs {
  std::string id;
  bool operator==(const JobResumeArgs&) const = default;
};
struct JobRemoveArgs {
  std::vector<std::string> ids;  // all of them, or none if one cannot be removed
  bool ended = false;            // all that have ended
  bool operator==(const JobRemoveArgs&) const = default;
};

// ---------------------------------------------------------------- type "done"

struct JobsDone {
  std::vector<JobStatus> jobs;  // in the order in which they were created
  std::string trouble;          // why records are not saved; "": they are
  bool operator==(const JobsDone&) const = default;
};
// Sent when the record is on disk, or cannot be (job.saved).
struct JobStartDone {
  JobReport report;
  bool operator==(const JobStartDone&) const = default;
};
// Sent when the job has ended, however it did.
struct JobAttachDone {
  JobReport report;
  bool operator==(const JobAttachDone&) const = default;
};
struct JobShowDone {
  JobReport report;
  bool operator==(const JobShowDone&) const = default;
};
// As it is then; a running job takes a moment to end.
struct JobCancelDone {
  JobReport report;
  bool operator==(const JobCancelDone&) const = default;
};
struct JobResumeDone {
  JobReport report;
  bool operator==(const JobResumeDone&) const = default;
};
struct JobRemoveDone {
  uint64_t removed = 0;
  bool operator==(const JobRemoveDone&) const = default;
};

}  // namespace mk::protocol
