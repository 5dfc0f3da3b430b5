#include "engine/format/spine_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/atomic_file.h"
#include "engine/base/private_folder.h"

namespace mk {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostBytes = 20'000'000'000;
constexpr std::string_view kSuffix = ".spine";
constexpr std::string_view kTemporary = ".spine.tmp.";

void Log(const SpineCacheOptions& options, const std::string& line) {
  if (options.log) options.log(line);
}

uint64_t LimitOf(const SpineCacheOptions& options) {
  if (options.limit != 0) return options.limit;
  struct statvfs info {};
  if (::statvfs(options.directory.c_str(), &info) != 0) return 0;
  return std::min<uint64_t>(kMostBytes, info.f_blocks * uint64_t{info.f_frsize} / 10);
}

struct Kept {
  std::string path;
  uint64_t bytes = 0;
  fs::file_time_type used;
};

// Removes the temporary file of a writer that died. One that lives holds a lock.
void RemoveIfAbandoned(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) (void)::unlink(path.c_str());
}

// Spines in the folder but for one name; removes what dead writers left.
std::vector<Kept> List(const std::string& directory, const std::string& but) {
  std::vector<Kept> files;
  std::error_code error;
  for (auto it = fs::directory_iterator(directory, error); !error && it != fs::end(it);
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (it->is_symlink(ignored) || !it->is_regular_file(ignored)) continue;
    if (name.find(kTemporary) != std::string::npos) {
      RemoveIfAbandoned(it->path().string());
    } else if (name.ends_with(kSuffix) && name != but) {
      std::error_code failed;
      Kept kept{it->path().string(), it->file_size(failed), it->last_write_time(ignored)};
      if (!failed) files.push_back(std::move(kept));
    }
  }
  return files;
}

// Removes files that were used least recently until `bytes` more fit into the limit.
void MakeRoom(const SpineCacheOptions& options, const std::string& name, uint64_t bytes,
              uint64_t limit) {
  std::vector<Kept> files = List(options.directory, name);
  std::sort(files.begin(), files.end(),
            [](const Kept& a, const Kept& b) { return a.used < b.used; });
  uint64_t total = bytes;
  for (const Kept& file : files) total += file.bytes;
  for (const Kept& file : files) {
    if (total <= limit) return;
    if (::unlink(file.path.c_str()) != 0) continue;
    total -= file.bytes;
    Log(options, "removed " + file.path + " to make room for another spine");
  }
}

Status Keep(const SpineCacheOptions& options, const SpineKey& key, std::span<const std::byte> spine,
            const std::function<bool()>& go_on) {
  if (Status made = MakePrivateFolder(options.directory); !made) return made;
  const uint64_t limit = LimitOf(options);
  if (spine.size() > limit) {
    return Fail(ErrorCode::kIo, "it has " + std::to_string(spine.size()) +
                                    " bytes, more than the " + std::to_string(limit) +
                                    " for all spines");
  }
  const std::string path = options.directory + "/" + key.FileName();
  MakeRoom(options, key.FileName(), spine.size(), limit);
  const Result<uint64_t> free = FreeSpaceFor(path);
  if (!free) return Fail(free.error());
  // What is left to others is at least what is taken.
  if (*free / 2 < spine.size()) {
    return Fail(ErrorCode::kIo,
                "only " + std::to_string(*free) + " bytes are free at " + options.directory);
  }
  return WriteSpineFile(path, key, spine, go_on);
}

}  // namespace

std::optional<SpineFile> FindSpine(const SpineCacheOptions& options, const SpineKey& key) {
  const std::string path = options.directory + "/" + key.FileName();
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return std::nullopt;
  Status safe = CheckPrivateFolder(options.directory);
  Result<SpineFile> file = safe ? SpineFile::Open(path, key) : Fail(safe.error());
  if (!file) {
    Log(options, "the prepared weights are made anew: " + file.error().message);
    return std::nullopt;
  }
  file->Touch();
  return std::move(*file);
}

void KeepSpine(const SpineCacheOptions& options, const SpineKey& key,
               std::span<const std::byte> spine, const std::function<bool()>& go_on) {
  const Status kept = Keep(options, key, spine, go_on);
  if (kept) {
    Log(options, "wrote " + options.directory + "/" + key.FileName());
  } else if (kept.error().code != ErrorCode::kCancelled) {
    Log(options, "the prepared weights are not kept: " + kept.error().message);
  }
}

}  // namespace mk
