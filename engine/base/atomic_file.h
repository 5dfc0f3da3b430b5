// AtomicFile: a file that appears complete or not at all.
//
// Bytes go to "<path>.tmp.<pid>" in the same directory, with ".<tag>" behind it when several
// threads of a process may write the same file at once. Commit() syncs the file, renames it over
// `path` and syncs the directory, so that after a power cut either the old or the new content is
// there. An AtomicFile that is destroyed without Commit() removes its temporary file.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/base/unique_fd.h"

namespace mk {

class AtomicFile {
 public:
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Creates the temporary file with the given permissions (before umask). A leftover of a dead
  // process with our pid is replaced. Errors: kNotFound (no such directory), kPermissionDenied,
  // kIo.
  static Result<AtomicFile> Create(const std::string& path, unsigned mode = 0644,
                                   const std::string& tag = {});

  // Reserves disk space and sets the length. Errors: kIo, with the disk named as full when it is.
  Status Allocate(uint64_t bytes);
  // Thread-safe for disjoint ranges.
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // Makes the new content the file at path(). To be called once.
  Status Commit();

  const std::string& path() const { return path_; }
  const std::string& temp_path() const { return temp_path_; }
  // Of the temporary file, for locks; -1 after Commit().
  int fd() const { return fd_.get(); }

 private:
  AtomicFile(std::string path, std::string temp_path, UniqueFd fd);

  std::string path_;
  std::string temp_path_;
  UniqueFd fd_;
  bool pending_ = true;
};

// Writes a whole small file atomically.
Status WriteFileAtomically(const std::string& path, std::string_view content, unsigned mode = 0644);

// After it, files that were made, renamed or removed in the directory are so after a power cut too.
// Errors: kIo and those of opening it.
Status SyncDirectory(const std::string& directory);

// Bytes that an unprivileged user can still write in the directory of `path`.
Result<uint64_t> FreeSpaceFor(const std::string& path);

}  // namespace mk
