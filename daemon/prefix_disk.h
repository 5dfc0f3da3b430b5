// The prefix cache on disk: states of beginnings of prompts as packs, in one folder per model.
//
//   DIRECTORY/lock                    held by the daemon that uses the directory
//   DIRECTORY/0123456789abcdef/       the first 16 digits of a model's fingerprint
//     model                           path of the model, for people
//     NAME.mkmem                      a state; its time of change is its rank (see below)
//     NAME.bad                        a file that was refused, kept to be looked at
//
// All files together take at most a limit. When there is no room for a new one, those of the lowest
// rank go, of whichever model. The value of a file is one and the uses that it had, and halves
// with every kDiskHalfLife: the same as in memory, but by the clock, which goes on when the daemon
// does not run. Since all values fade alike, the moment at which a value has faded to one says
// all, and is what the file keeps as its time of change.
//
// Nothing depends on this: what cannot be read is read from the prompt, what cannot be written is
// not kept. A file that is damaged or of something else is renamed once and never tried again.
//
// Thread-safe. Functions that read or write files say so; no lock is held meanwhile, so that the
// others never wait for a disk.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/lock_file.h"
#include "daemon/prefix_file.h"
#include "daemon/prefix_kind.h"
#include "daemon/task_thread.h"

namespace mk::daemon {

// Time in which the uses of a file lose half of their weight.
inline constexpr double kDiskHalfLife = 24 * 3600;  // seconds

// Folder of a model's files.
std::string PrefixFolderOf(const std::string& fingerprint);

class PrefixDisk {
 public:
  using HeadRef = std::shared_ptr<const PrefixHead>;
  // A file. What it holds is known while a model of its folder is open.
  class File {
   public:
    const std::string& path() const { return path_; }

   private:
    friend class PrefixDisk;
    // Not changed any more once others know the file.
    std::string path_;
    std::string folder_;
    uint64_t bytes_ = 0;
    // Below: under the lock.
    HeadRef head_;           // null: not known
    double rank_ = 0;        // seconds since 1970
    bool bad_ = false;       // never used again; the first to go
    bool gone_ = false;      // removed
    int readers_ = 0;        // it is being read: it stays
    bool touching_ = false;  // its new rank is on the way to the disk
  };
  using FileRef = std::shared_ptr<File>;

  struct Counts {
    uint64_t files = 0;
    uint64_t bytes = 0;  // those that were refused included
    uint64_t limit = 0;
    uint64_t bad = 0;      // of the files
    uint64_t loads = 0;    // states read
    uint64_t refused = 0;  // files that could not be used
    uint64_t writes = 0;
    uint64_t unwritten = 0;  // states that could not be kept
    uint64_t evicted = 0;
    uint64_t waiting = 0;  // states that are to be written
  };
  // What a file says in a list.
  struct Listed {
    FileRef file;
    HeadRef head;  // null: not known
    uint64_t bytes = 0;
    double value = 0;
    bool bad = false;
  };
  struct Folder {
    std::string model;  // path, as far as known
    std::vector<Listed> files;
  };
  struct Removed {
    uint64_t files = 0;
    uint64_t bytes = 0;
  };

  // `limit` in bytes; 0: the disk is not used; none: from the size of the disk. Wall time in
  // seconds comes from `now`. Nothing is made before something is to be written.
  PrefixDisk(std::string directory, std::optional<uint64_t> limit,
             std::function<double()> now = {});
  ~PrefixDisk() { Stop(); }
  PrefixDisk(const PrefixDisk&) = delete;
  PrefixDisk& operator=(const PrefixDisk&) = delete;

  // Called when nothing waits to be written any more, from the writing thread.
  void SetOnWritten(std::function<void()> on_written);
  void SetLimit(std::optional<uint64_t> limit);
  bool on() const { return limit_.load() > 0; }
  const std::string& directory() const { return directory_; }
  // Why nothing is kept at this time; empty: all is well.
  std::string trouble() const;

  // ---- Models; Open reads files ----
  // Learns which prompts the files of a model's folder are of. Every Open has its Close.
  void Open(const ModelInfo& info);
  void Close(const std::string& fingerprint);

  // ---- Of an open model, from memory ----
  // The file with the longest beginning of the prompt that a run may go on from, if it has at
  // least `at_least` tokens.
  FileRef FindLongest(const std::string& fingerprint, const PrefixKind& kind,
                      std::span<const int32_t> prompt, size_t block, size_t at_least) const;
  // Tokens that the prompt has in common with any file, at most.
  size_t Shared(const std::string& fingerprint, const PrefixKind& kind,
                std::span<const int32_t> prompt) const;
  // The state was used once more.
  void Credit(const FileRef& file);
  double ValueOf(const FileRef& file) const;
  HeadRef HeadOf(const FileRef& file) const;
  // Whether it is there and of use; false for null.
  bool Holds(const FileRef& file) const;

  // ---- Files ----
  // None: it cannot be used; it has been set aside if that is its own fault.
  std::optional<PrefixState> Load(const FileRef& file, const Model& model);
  // Null: it is not kept. On the writing thread only.
  FileRef Save(const Model& model, PrefixHead head, std::span<const float> logits,
               const Sequence& state, double value);
  // Removes the files of some folders. On the writing thread only.
  Removed Clean(const std::function<bool(const std::string& folder, const std::string& model)>& of);

  // ---- Threads that may wait ----
  // False when too much waits.
  bool PostRead(TaskThread::Task task) { return reader_.Post(std::move(task)); }
  bool PostWrite(TaskThread::Task task);
  bool writing() const { return writes_waiting_.load() > 0; }
  // Takes nothing more, drops what waits, lets what is being written end.
  void Stop();

  Counts counts() const;
  // By folder.
  std::map<std::string, Folder> List() const;

 private:
  static constexpr const char* kModelFile = "model";
  // Of all models together; those of the lowest rank go first.
  static constexpr uint64_t kMostFiles = 4096;
  // A clock that was set back leaves ranks of the future; no file deserves more than this.
  static constexpr double kMostValue = 1024;

  struct FolderState {
    std::string model;
    size_t users = 0;  // Open without Close
    std::vector<FileRef> files;
  };

  std::string FolderPath(const std::string& name) const { return directory_ + "/" + name; }
  bool Prepare(bool make);
  void Scan();
  void ScanFolder(const std::string& name);
  void ReadHead(const ModelInfo& info, const FileRef& file, size_t& room);
  Status Write(const std::string& path, const Model& model, const PrefixHead& head,
               std::span<const float> logits, const Sequence& state, double rank);
  Status MakeRoom(uint64_t bytes, double rank, const std::string& path);
  std::vector<FileRef> InOrderOfRankLocked() const;
  void DropLocked(const std::string& folder, const std::string& path);
  void Remove(const FileRef& file);
  void Evict(const std::vector<FileRef>& files);
  void TakeIn(const FileRef& file);
  void SetAside(const FileRef& file, const Error& error);
  void WriteRank(const FileRef& file);
  void Trouble(const std::string& what);
  void Shrink();

  const std::string directory_;
  const std::function<double()> now_;
  std::atomic<uint64_t> limit_{0};
  std::atomic<uint64_t> writes_waiting_{0};

  std::mutex prepare_mutex_;  // held while the directory is taken and scanned
  bool prepared_ = false;     // under prepare_mutex_
  LockFile lock_;             // under prepare_mutex_

  mutable std::mutex mutex_;
  // Below: under mutex_.
  std::function<void()> on_written_;
  std::map<std::string, FolderState> folders_;
  uint64_t bytes_ = 0;
  uint64_t files_ = 0;
  std::string trouble_;
  double quiet_until_ = 0;  // no writing before, after a failure
  Counts counted_;          // what only grows

  TaskThread reader_{"prefix-read", 256};
  TaskThread writer_{"prefix-write", 256, 5};
};

}  // namespace mk::daemon
