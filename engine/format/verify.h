// Full scan of a model file: every byte is read, every value looked at.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace mk {

struct VerifyProblem {
  std::string tensor;   // "" for the file as a whole
  std::string message;  // what is wrong, with the first position
  uint64_t count = 0;   // how many values
};

struct VerifyReport {
  uint64_t file_bytes = 0;
  uint64_t tensors = 0;
  uint64_t values_checked = 0;   // floats, scale bytes, indices
  std::string xxh3_128;          // 32 hex digits over all bytes of the file
  std::string content_sha256;    // 64 hex digits over all blobs, in directory order, no padding
  bool digest_recorded = false;  // the config carries content_sha256
  std::vector<std::string> warnings;
  std::vector<VerifyProblem> problems;  // at most kMaxProblems; empty = sound
  uint64_t problems_total = 0;
  uint64_t resumed_bytes = 0;  // read by an earlier scan that this one went on from
  bool ok() const { return problems_total == 0; }
  static constexpr size_t kMaxProblems = 64;
};

// All may be empty.
struct VerifyOptions {
  // Called at least once per MiB with the bytes read and those to be read in all; false: give up.
  std::function<bool(uint64_t done, uint64_t total)> progress;
  // What `save` was given by an earlier scan. That of another file, of this one before it changed,
  // or of another version is not used.
  std::string checkpoint;
  // Receives what a later scan can go on from, at the border of two tensors.
  std::function<void(std::string checkpoint)> save;
  std::chrono::milliseconds save_interval{2000};
};

// Opens the file with all checks and scans it: floats finite, scale bytes not 255, MXFP4SQ smax
// finite and not negative, padding zero, and the recorded digest, if there is one, equal.
// Errors are those of MkimFile::Open, kIo, and kCancelled; what the scan finds is in the report.
Result<VerifyReport> VerifyFile(const std::string& path, const VerifyOptions& options = {});

}  // namespace mk
