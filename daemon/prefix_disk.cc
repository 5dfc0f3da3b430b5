#include "daemon/prefix_disk.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/base/atomic_file.h"
#include "engine/base/file.h"
#include "engine/base/private_folder.h"
#include "protocol/utf8.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".mkmem";
constexpr std::string_view kBadSuffix = ".bad";
constexpr std::string_view kTemporary = ".tmp.";
constexpr size_t kFolderDigits = 16;

// Entries of a folder that are looked at.
constexpr size_t kMostEntries = 65'536;
// Tokens that are kept in memory for the files of one model: 16 MiB.
constexpr size_t kMostTokens = size_t{4} << 20;
constexpr uint64_t kMostPathBytes = 4096;

// By default all files take this, or a twentieth of the disk, whichever is less.
constexpr uint64_t kDefaultBytes = 10'000'000'000;
constexpr uint64_t kShareOfDisk = 20;

// After a failure to write: how long the next one is not tried.
constexpr double kQuietSeconds = 30;

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

uint64_t LimitOf(const std::string& directory, std::optional<uint64_t> limit) {
  if (limit) return *limit;
  // The nearest folder that exists tells the size of the disk.
  fs::path at = directory;
  struct statvfs info {};
  while (::statvfs(at.c_str(), &info) != 0) {
    if (!at.has_parent_path() || at == at.parent_path()) return kDefaultBytes;
    at = at.parent_path();
  }
  return std::min<uint64_t>(kDefaultBytes, info.f_blocks * uint64_t{info.f_frsize} / kShareOfDisk);
}

bool IsFolderName(const std::string& name) {
  return name.size() == kFolderDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string ReadModelPath(const std::string& path) {
  auto text = ReadWholeFile(path, kMostPathBytes);
  if (!text || protocol::FindInvalidUtf8(*text) != std::string::npos) return {};
  return std::move(*text);
}

}  // namespace

std::string PrefixFolderOf(const std::string& fingerprint) {
  return fingerprint.substr(0, kFolderDigits);
}

PrefixDisk::PrefixDisk(std::string directory, std::optional<uint64_t> limit,
                       std::function<double()> now)
    : directory_(std::move(directory)), now_(now ? std::move(now) : WallSeconds) {
  SetLimit(limit);
}

void PrefixDisk::Stop() {
  reader_.Stop();
  writer_.Stop();
}

void PrefixDisk::SetLimit(std::optional<uint64_t> limit) {
  limit_.store(LimitOf(directory_, limit));
  if (!on()) return;
  PostWrite([this] {
    if (Prepare(false)) Shrink();
  });
}

bool PrefixDisk::PostWrite(TaskThread::Task task) {
  ++writes_waiting_;
  const bool posted = writer_.Post([this, task = std::move(task)] {
    task();
    if (--writes_waiting_ > 0) return;
    std::function<void()> told;
    {
      std::lock_guard lock(mutex_);
      told = on_written_;
    }
    if (told) told();
  });
  if (!posted) --writes_waiting_;
  return posted;
}

void PrefixDisk::SetOnWritten(std::function<void()> on_written) {
  std::lock_guard lock(mutex_);
  on_written_ = std::move(on_written);
}

std::string PrefixDisk::trouble() const {
  std::lock_guard lock(mutex_);
  return trouble_;
}

// ---- Taking the directory ----

// Whether the directory is ours, and what is in it is known. `make`: it is made if need be.
bool PrefixDisk::Prepare(bool make) {
  std::lock_guard lock(prepare_mutex_);
  if (prepared_) return true;
  std::error_code error;
  if (!make && !fs::exists(directory_, error)) return false;
  const Status safe = make ? MakePrivateFolder(directory_) : CheckPrivateFolder(directory_);
  if (!safe) {
    Trouble(safe.error().message);
    return false;
  }
  auto taken = LockFile::Acquire(directory_ + "/lock");
  if (!taken) {
    Trouble(taken.error().code == ErrorCode::kIncompatible ? "another daemon uses " + directory_
                                                           : taken.error().message);
    return false;
  }
  lock_ = std::move(*taken);
  Scan();
  prepared_ = true;
  std::lock_guard well(mutex_);
  trouble_.clear();
  quiet_until_ = 0;
  return true;
}

void PrefixDisk::Scan() {
  std::error_code error;
  size_t seen = 0;
  for (auto it = fs::directory_iterator(directory_, error);
       !error && it != fs::end(it) && seen < kMostEntries; it.increment(error), ++seen) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (IsFolderName(name) && !it->is_symlink(ignored) && it->is_directory(ignored)) {
      ScanFolder(name);
    }
  }
}

void PrefixDisk::ScanFolder(const std::string& name) {
  const std::string folder = FolderPath(name);
  const std::string model = ReadModelPath(folder + "/" + kModelFile);
  std::vector<FileRef> found;
  std::error_code error;
  size_t seen = 0;
  for (auto it = fs::directory_iterator(folder, error);
       !error && it != fs::end(it) && seen < kMostEntries; it.increment(error), ++seen) {
    const std::string path = it->path().string();
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    // We hold the lock: whoever wrote it is dead.
    if (path.find(kTemporary, folder.size()) != std::string::npos) {
      ::unlink(path.c_str());
      continue;
    }
    const bool bad = path.ends_with(kBadSuffix);
    if (!bad && !path.ends_with(kSuffix)) continue;
    auto file = std::make_shared<File>();
    file->path_ = path;
    file->folder_ = name;
    file->bytes_ = static_cast<uint64_t>(info.st_size);
    file->rank_ = std::min(static_cast<double>(info.st_mtim.tv_sec) + info.st_mtim.tv_nsec * 1e-9,
                           now_() + kDiskHalfLife * std::log2(kMostValue));
    file->bad_ = bad;
    found.push_back(std::move(file));
  }
  std::lock_guard lock(mutex_);
  folders_[name].model = model;
  for (const FileRef& file : found) TakeIn(file);
}

// Under the lock: counts a file that is there.
void PrefixDisk::TakeIn(const FileRef& file) {
  folders_[file->folder_].files.push_back(file);
  bytes_ += file->bytes_;
  ++files_;
}

// ---- Models ----

void PrefixDisk::Open(const ModelInfo& info) {
  const std::string name = PrefixFolderOf(info.fingerprint);
  {
    std::lock_guard lock(mutex_);
    ++folders_[name].users;
  }
  if (!on() || !Prepare(false)) return;
  std::vector<FileRef> files;
  {
    std::lock_guard lock(mutex_);
    for (const FileRef& file : folders_[name].files) {
      if (!file->bad_ && !file->head_) files.push_back(file);
    }
    std::sort(files.begin(), files.end(),
              [](const FileRef& a, const FileRef& b) { return a->rank_ > b->rank_; });
  }
  size_t room = kMostTokens;
  for (const FileRef& file : files) ReadHead(info, file, room);
}

// What does not fit into memory is left alone; it is the least useful.
void PrefixDisk::ReadHead(const ModelInfo& info, const FileRef& file, size_t& room) {
  auto head = ReadPrefixHead(file->path_, info);
  if (!head) {
    if (head.error().code != ErrorCode::kOutOfMemory) SetAside(file, head.error());
    return;
  }
  if (head->tokens.size() > room) {
    room = 0;
    return;
  }
  room -= head->tokens.size();
  auto known = std::make_shared<const PrefixHead>(std::move(*head));
  std::lock_guard lock(mutex_);
  file->head_ = std::move(known);
}

void PrefixDisk::Close(const std::string& fingerprint) {
  std::lock_guard lock(mutex_);
  FolderState& folder = folders_[PrefixFolderOf(fingerprint)];
  if (folder.users > 0 && --folder.users > 0) return;
  for (const FileRef& file : folder.files) file->head_.reset();
}

PrefixDisk::FileRef PrefixDisk::FindLongest(const std::string& fingerprint, const PrefixKind& kind,
                                            std::span<const int32_t> prompt, size_t block,
                                            size_t at_least) const {
  if (!on()) return nullptr;
  std::lock_guard lock(mutex_);
  const auto folder = folders_.find(PrefixFolderOf(fingerprint));
  if (folder == folders_.end()) return nullptr;
  FileRef best;
  for (const FileRef& file : folder->second.files) {
    if (!file->head_ || file->bad_ || file->head_->kind != kind) continue;
    const size_t length = file->head_->tokens.size();
    if (length < at_least || (best && length <= best->head_->tokens.size())) continue;
    if (BeginsPrompt(file->head_->tokens, file->head_->logits, prompt, block)) best = file;
  }
  return best;
}

size_t PrefixDisk::Shared(const std::string& fingerprint, const PrefixKind& kind,
                          std::span<const int32_t> prompt) const {
  if (!on()) return 0;
  std::lock_guard lock(mutex_);
  const auto folder = folders_.find(PrefixFolderOf(fingerprint));
  if (folder == folders_.end()) return 0;
  size_t most = 0;
  for (const FileRef& file : folder->second.files) {
    if (!file->head_ || file->bad_ || file->head_->kind != kind) continue;
    most = std::max(most, CommonLength(file->head_->tokens, prompt));
  }
  return most;
}

// The file hears of it in the background, and of many uses at once.
void PrefixDisk::Credit(const FileRef& file) {
  {
    std::lock_guard lock(mutex_);
    const double now = now_();
    const double value = std::exp2((file->rank_ - now) / kDiskHalfLife) + 1;
    file->rank_ = now + kDiskHalfLife * std::log2(std::min(value, kMostValue));
    if (file->touching_ || file->gone_) return;
    file->touching_ = true;
  }
  PostWrite([this, file] { WriteRank(file); });
}

double PrefixDisk::ValueOf(const FileRef& file) const {
  std::lock_guard lock(mutex_);
  return std::exp2((file->rank_ - now_()) / kDiskHalfLife);
}

bool PrefixDisk::Holds(const FileRef& file) const {
  std::lock_guard lock(mutex_);
  return file && !file->gone_ && !file->bad_;
}

PrefixDisk::HeadRef PrefixDisk::HeadOf(const FileRef& file) const {
  std::lock_guard lock(mutex_);
  return file->head_;
}

// ---- Reading ----

std::optional<PrefixState> PrefixDisk::Load(const FileRef& file, const Model& model) {
  HeadRef head;
  {
    std::lock_guard lock(mutex_);
    if (!file->head_ || file->bad_ || file->gone_) return std::nullopt;
    head = file->head_;
    ++file->readers_;
  }
  auto state = ReadPrefixState(file->path_, model, *head);
  {
    std::lock_guard lock(mutex_);
    --file->readers_;
    if (state) ++counted_.loads;
  }
  if (state) return std::move(*state);
  if (state.error().code != ErrorCode::kOutOfMemory) SetAside(file, state.error());
  return std::nullopt;
}

// A file that could not be read for a reason of the system's is only not tried again by this
// daemon.
void PrefixDisk::SetAside(const FileRef& file, const Error& error) {
  {
    std::lock_guard lock(mutex_);
    if (file->bad_ || file->gone_) return;
    // Somebody removed it.
    if (error.code == ErrorCode::kNotFound) return DropLocked(file->folder_, file->path_);
    file->bad_ = true;
    file->head_.reset();
    ++counted_.refused;
  }
  auto renamed = std::make_shared<File>();
  renamed->folder_ = file->folder_;
  renamed->bytes_ = file->bytes_;
  renamed->bad_ = true;
  renamed->path_ = file->path_.substr(0, file->path_.size() - kSuffix.size()).append(kBadSuffix);
  const bool moved =
      IsBadFile(error.code) && ::rename(file->path_.c_str(), renamed->path_.c_str()) == 0;
  spdlog::warn("prefix cache: {}; it is not used{}", error.message,
               moved ? " and is " + renamed->path_ + " now" : std::string());
  if (!moved) return;
  std::lock_guard lock(mutex_);
  DropLocked(file->folder_, file->path_);
  // One of this name that was refused before is overwritten.
  DropLocked(file->folder_, renamed->path_);
  TakeIn(renamed);
}

// Forgets a file that is not there any more.
void PrefixDisk::DropLocked(const std::string& folder, const std::string& path) {
  std::erase_if(folders_[folder].files, [&](const FileRef& file) {
    if (file->path_ != path) return false;
    file->gone_ = true;
    file->head_.reset();
    bytes_ -= file->bytes_;
    --files_;
    return true;
  });
}

// ---- Telling ----

// Told once, until something else is wrong or all is well again.
void PrefixDisk::Trouble(const std::string& what) {
  std::lock_guard lock(mutex_);
  quiet_until_ = now_() + kQuietSeconds;
  if (trouble_.empty()) spdlog::warn("prefix cache: states are not kept on disk: {}", what);
  trouble_ = what;
}

PrefixDisk::Counts PrefixDisk::counts() const {
  std::lock_guard lock(mutex_);
  Counts counts = counted_;
  counts.files = files_;
  counts.bytes = bytes_;
  counts.limit = limit_.load();
  counts.waiting = writes_waiting_.load();
  for (const auto& [name, folder] : folders_) {
    counts.bad += static_cast<uint64_t>(std::count_if(
        folder.files.begin(), folder.files.end(), [](const FileRef& file) { return file->bad_; }));
  }
  return counts;
}

std::map<std::string, PrefixDisk::Folder> PrefixDisk::List() const {
  std::lock_guard lock(mutex_);
  const double now = now_();
  std::map<std::string, Folder> list;
  for (const auto& [name, folder] : folders_) {
    Folder& to = list[name];
    to.model = folder.model;
    for (const FileRef& file : folder.files) {
      to.files.push_back({file, file->head_, file->bytes_,
                          std::exp2((file->rank_ - now) / kDiskHalfLife), file->bad_});
    }
  }
  return list;
}

}  // namespace mk::daemon
