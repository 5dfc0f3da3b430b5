// JobWriter: writes the records of jobs on a thread of its own, for disks may be slow.
//
// Of one job only the last record that was asked for is written. Thread-safe.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "daemon/jobs/job_event.h"
#include "daemon/jobs/job_store.h"

namespace mk::daemon {

class JobWriter {
 public:
  // `post` is called on the thread: a JobSaved for every record that was written or could not be.
  JobWriter(JobStore store, std::function<void(JobEvent)> post);
  ~JobWriter() { Stop(); }
  JobWriter(const JobWriter&) = delete;
  JobWriter& operator=(const JobWriter&) = delete;

  void Save(protocol::JobRecord record, uint64_t change);
  void Remove(const std::string& id);
  // Writes what waits and ends the thread.
  void Stop();

 private:
  struct Task {
    std::optional<protocol::JobRecord> record;  // none: it is to be removed
    uint64_t change = 0;
  };
  void Put(const std::string& id, Task task);
  void Run();
  void Do(const std::string& id, const Task& task);

  JobStore store_;
  const std::function<void(JobEvent)> post_;
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::map<std::string, Task> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mk::daemon
