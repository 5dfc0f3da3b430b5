// PartialShadows: a sidecar on its way, `<target>.partial`, which another process can go on with.
//
// It has the length and the places of the file that it becomes; its head is written last, so that
// nobody takes it for one before. One process at a time holds it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/base/unique_fd.h"
#include "engine/shadow/shadow_format.h"

namespace mk {

class PartialShadows {
 public:
  // Opens the one of an earlier run, or makes one. Errors: kInvalidArgument when another process
  // or job has it, kPermissionDenied, kNotFound (no such folder), kIo.
  static Result<PartialShadows> Open(const std::string& target);
  PartialShadows(PartialShadows&&) = default;
  PartialShadows& operator=(PartialShadows&&) = delete;
  // Removed unless Keep() or Finish() was called.
  ~PartialShadows();

  // Empties it and reserves space. Errors: kIo, with the disk named as full when it is.
  Status Begin(uint64_t bytes);
  Result<uint64_t> size() const;
  Status Read(uint64_t offset, std::span<std::byte> out) const;
  // Thread-safe for disjoint ranges.
  Status Write(uint64_t offset, std::span<const std::byte> bytes) const;
  // What was written is there after a power cut too.
  Status Sync() const;
  // Stays when this goes, for a later run.
  void Keep() { keep_ = true; }
  // Syncs it and makes it the target.
  Status Finish();

 private:
  PartialShadows(std::string target, std::string path, UniqueFd fd)
      : target_(std::move(target)), path_(std::move(path)), fd_(std::move(fd)) {}

  std::string target_;
  std::string path_;
  UniqueFd fd_;  // holds the lock
  bool keep_ = false;
};

// Removes what a run has left that nobody will go on with; not while somebody holds it.
void RemovePartialShadows(const std::string& target);

}  // namespace mk
