// JobStore: the records of jobs on disk, one file each.
//
//   <directory>/<id>.job: a JobRecord in a record file (record_file.h) of the magic "MKJOB1\n\0"
//
// A file appears complete or not at all: it is written beside its place, synced and renamed. What
// cannot be read is set aside as <id>.job.bad, of which some are kept for people to look at, and
// never tried again.
//
// Blocks on the disk. Not thread-safe.

#pragma once

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "protocol/job_record.h"

namespace mk::daemon {

class JobStore {
 public:
  explicit JobStore(std::string directory) : directory_(std::move(directory)) {}

  struct Loaded {
    std::vector<protocol::JobRecord> records;
    std::vector<std::string> warnings;  // files that were set aside, and why
  };
  // All records. Makes the folder, and cleans up what a daemon that died left half-written.
  // Errors: kPermissionDenied, kIo.
  Result<Loaded> Load();

  // Makes the folder too, should it have gone. Errors: kPermissionDenied, kIo; the old record is
  // there still.
  Status Save(const protocol::JobRecord& record);
  // A record that is not there is no error.
  Status Remove(const std::string& id);

  const std::string& directory() const { return directory_; }

 private:
  std::string PathOf(const std::string& id) const;
  void SetAside(const std::string& name, const std::string& reason, Loaded& loaded);
  void LoadOne(const std::string& name, Loaded& loaded);

  const std::string directory_;
};

// The bytes of a file, and back. Errors: kCorrupt; kUnsupported for a later version.
std::string EncodeJobFile(const protocol::JobRecord& record);
Result<protocol::JobRecord> DecodeJobFile(std::string_view bytes);

}  // namespace mk::daemon
