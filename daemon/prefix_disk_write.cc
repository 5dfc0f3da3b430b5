// What changes the files of the prefix cache. All of it runs on the writing thread.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <utility>

#include "daemon/prefix_disk.h"
#include "engine/base/atomic_file.h"
#include "engine/base/file.h"
#include "engine/base/private_folder.h"

namespace mk::daemon {

namespace fs = std::filesystem;

PrefixDisk::FileRef PrefixDisk::Save(const Model& model, PrefixHead head,
                                     std::span<const float> logits, const Sequence& state,
                                     double value) {
  const double now = now_();
  {
    std::lock_guard lock(mutex_);
    if (now < quiet_until_) return nullptr;
  }
  if (!on() || !Prepare(true)) return nullptr;
  auto file = std::make_shared<File>();
  file->folder_ = PrefixFolderOf(model.info().fingerprint);
  file->path_ = FolderPath(file->folder_) + "/" + PrefixFileName(head.kind, head.tokens);
  file->rank_ = now + kDiskHalfLife * std::log2(std::clamp(value, 1.0 / kMostValue, kMostValue));
  if (Status written = Write(file->path_, model, head, logits, state, file->rank_); !written) {
    std::lock_guard lock(mutex_);
    ++counted_.unwritten;
    return nullptr;
  }
  struct stat info {};
  if (::lstat(file->path_.c_str(), &info) != 0) return nullptr;
  file->bytes_ = static_cast<uint64_t>(info.st_size);
  auto known = std::make_shared<const PrefixHead>(std::move(head));
  {
    std::lock_guard lock(mutex_);
    if (folders_[file->folder_].users > 0) file->head_ = std::move(known);
    DropLocked(file->folder_, file->path_);  // what had this name is replaced
    TakeIn(file);
    ++counted_.writes;
    trouble_.clear();
  }
  WriteRank(file);
  return file;
}

// Errors have been told when this returns one.
Status PrefixDisk::Write(const std::string& path, const Model& model, const PrefixHead& head,
                         std::span<const float> logits, const Sequence& state, double rank) {
  const std::string folder = fs::path(path).parent_path().string();
  const auto work = [&]() -> Status {
    if (Status made = MakePrivateFolder(folder); !made) return made;
    const std::string name = fs::path(folder).filename().string();
    bool named = false;
    {
      std::lock_guard lock(mutex_);
      named = folders_[name].model == model.info().path;
      folders_[name].model = model.info().path;
    }
    if (!named) {
      // For people alone: that it cannot be written does no harm.
      (void)WriteFileAtomically(folder + "/" + kModelFile, model.info().path, 0600);
    }
    // Beside the state: tables, ids and the row of logits.
    constexpr uint64_t kTables = 64 << 10;
    const uint64_t bytes = state.state_bytes() + kTables + 4 * (head.tokens.size() + logits.size());
    if (Status room = MakeRoom(bytes, rank, path); !room) return room;
    const auto free = FreeSpaceFor(path);
    if (!free) return Fail(free.error());
    // What is left to others is at least what is taken.
    if (*free / 2 < bytes) {
      return Fail(ErrorCode::kIo, "only " + std::to_string(*free) + " bytes are free at " + folder);
    }
    auto written = WritePrefixFile(path, model, head.tokens, logits, state);
    return written ? Status() : Fail(written.error());
  };
  Status status = work();
  // That all files are worth more is no trouble.
  if (!status && status.error().code != ErrorCode::kCancelled) Trouble(status.error().message);
  return status;
}

// kCancelled: what would have to go is worth more.
Status PrefixDisk::MakeRoom(uint64_t bytes, double rank, const std::string& path) {
  const uint64_t limit = limit_.load();
  std::vector<FileRef> going;
  {
    std::lock_guard lock(mutex_);
    uint64_t left = bytes_;
    uint64_t count = files_;
    const auto fits = [&] { return bytes <= limit && left <= limit - bytes && count < kMostFiles; };
    const std::vector<FileRef> files = InOrderOfRankLocked();
    for (const FileRef& file : files) {
      if (file->path_ == path) left -= file->bytes_;  // it is replaced
    }
    for (const FileRef& file : files) {
      if (fits() || (!file->bad_ && file->rank_ > rank)) break;
      if (file->readers_ > 0 || file->path_ == path) continue;
      going.push_back(file);
      left -= file->bytes_;
      --count;
    }
    if (!fits()) {
      return Fail(ErrorCode::kCancelled, "no room for a state that is used less than the others");
    }
  }
  Evict(going);
  return {};
}

// Those that were refused, then the others, the least useful first.
std::vector<PrefixDisk::FileRef> PrefixDisk::InOrderOfRankLocked() const {
  std::vector<FileRef> files;
  for (const auto& [name, folder] : folders_) {
    files.insert(files.end(), folder.files.begin(), folder.files.end());
  }
  std::stable_sort(files.begin(), files.end(), [](const FileRef& a, const FileRef& b) {
    return a->bad_ != b->bad_ ? a->bad_ : a->rank_ < b->rank_;
  });
  return files;
}

// Whoever reads it may read on.
void PrefixDisk::Remove(const FileRef& file) {
  if (::unlink(file->path_.c_str()) != 0 && errno != ENOENT) {
    Trouble(SystemError(errno, "remove", file->path_).message);
  }
  std::lock_guard lock(mutex_);
  DropLocked(file->folder_, file->path_);
}

// After the limit was lowered.
void PrefixDisk::Shrink() {
  std::vector<FileRef> going;
  {
    std::lock_guard lock(mutex_);
    uint64_t left = bytes_;
    uint64_t count = files_;
    for (const FileRef& file : InOrderOfRankLocked()) {
      if (left <= limit_.load() && count <= kMostFiles) break;
      if (file->readers_ > 0) continue;
      going.push_back(file);
      left -= file->bytes_;
      --count;
    }
  }
  Evict(going);
}

void PrefixDisk::Evict(const std::vector<FileRef>& files) {
  for (const FileRef& file : files) Remove(file);
  std::lock_guard lock(mutex_);
  counted_.evicted += files.size();
}

PrefixDisk::Removed PrefixDisk::Clean(
    const std::function<bool(const std::string& folder, const std::string& model)>& of) {
  Removed removed;
  if (!Prepare(false)) return removed;
  std::vector<FileRef> files;
  std::vector<std::string> names;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, folder] : folders_) {
      if (!of(name, folder.model)) continue;
      names.push_back(name);
      files.insert(files.end(), folder.files.begin(), folder.files.end());
    }
  }
  for (const FileRef& file : files) {
    Remove(file);
    ++removed.files;
    removed.bytes += file->bytes_;
  }
  std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    // What is not ours stays, and the folder with it.
    const std::string path = FolderPath(name);
    ::unlink((path + "/" + kModelFile).c_str());
    ::rmdir(path.c_str());
    folders_[name].model.clear();
    if (folders_[name].users == 0 && folders_[name].files.empty()) folders_.erase(name);
  }
  return removed;
}

void PrefixDisk::WriteRank(const FileRef& file) {
  double rank = 0;
  {
    std::lock_guard lock(mutex_);
    file->touching_ = false;
    if (file->gone_ || file->bad_) return;
    rank = file->rank_;
  }
  const double seconds = std::floor(rank);
  const timespec time{static_cast<time_t>(seconds), static_cast<long>((rank - seconds) * 1e9)};
  const timespec times[2] = {{0, UTIME_OMIT}, time};
  ::utimensat(AT_FDCWD, file->path_.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

}  // namespace mk::daemon
