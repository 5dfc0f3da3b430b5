#include "daemon/jobs/job_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "daemon/dirs.h"
#include "daemon/record_file.h"
#include "engine/base/atomic_file.h"
#include "engine/base/file.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic("MKJOB1\n\0", 8);
static_assert(kMagic.size() == kRecordMagicBytes);
constexpr std::string_view kSuffix = ".job";
constexpr std::string_view kBad = ".job.bad";
constexpr std::string_view kTemporary = ".job.tmp.";
// A record is some kilobytes, and a checkpoint on top.
constexpr uint64_t kMaxFileBytes = uint64_t{8} << 20;
// Files that are read at start; a daemon keeps far fewer.
constexpr size_t kMaxFiles = 20'000;
constexpr size_t kMaxBad = 16;

struct Named {
  std::string name;
  fs::file_time_type time;
};

}  // namespace

std::string EncodeJobFile(const protocol::JobRecord& record) {
  return EncodeRecordFile(kMagic, protocol::EncodeJobRecord(record));
}

Result<protocol::JobRecord> DecodeJobFile(std::string_view bytes) {
  auto payload = DecodeRecordFile(kMagic, "record of a job", bytes);
  if (!payload) return Fail(payload.error());
  auto record = protocol::DecodeJobRecord(*payload);
  if (record) return std::move(*record);
  const bool newer = record.error().code == protocol::ErrorCode::kUnsupportedVersion;
  return Fail(newer ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, record.error().message);
}

std::string JobStore::PathOf(const std::string& id) const {
  return directory_ + "/" + id + std::string(kSuffix);
}

void JobStore::SetAside(const std::string& name, const std::string& reason, Loaded& loaded) {
  const std::string path = directory_ + "/" + name;
  std::string bad = path;
  bad.replace(bad.size() - kSuffix.size(), kSuffix.size(), kBad);
  std::string warning = path + " is set aside: " + reason;
  if (::rename(path.c_str(), bad.c_str()) != 0) {
    warning += std::string("; it could not be renamed: ") + std::strerror(errno);
  }
  loaded.warnings.push_back(std::move(warning));
}

void JobStore::LoadOne(const std::string& name, Loaded& loaded) {
  const std::string path = directory_ + "/" + name;
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    return SetAside(name, "it is a symbolic link", loaded);
  }
  auto bytes = ReadWholeFile(path, kMaxFileBytes);
  if (!bytes) return SetAside(name, bytes.error().message, loaded);
  auto record = DecodeJobFile(*bytes);
  if (!record && record.error().code == ErrorCode::kUnsupported) {
    loaded.warnings.push_back(path + " is left alone: " + record.error().message);
    return;
  }
  if (!record) return SetAside(name, record.error().message, loaded);
  if (record->id + std::string(kSuffix) != name) {
    return SetAside(name, "it is the record of job " + record->id, loaded);
  }
  loaded.records.push_back(std::move(*record));
}

Result<JobStore::Loaded> JobStore::Load() {
  if (auto made = MakePrivateDirectory(directory_); !made) return Fail(made.error());
  Loaded loaded;
  std::vector<std::string> names;
  std::vector<Named> bad;
  std::error_code error;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name.find(kTemporary) != std::string::npos) {
      fs::remove(it->path(), ignored);
    } else if (name.ends_with(kBad)) {
      bad.push_back({name, fs::last_write_time(it->path(), ignored)});
    } else if (name.ends_with(kSuffix) && names.size() < kMaxFiles) {
      names.push_back(name);
    }
  }
  if (error) {
    return Fail(
        error == std::errc::permission_denied ? ErrorCode::kPermissionDenied : ErrorCode::kIo,
        "cannot list " + directory_ + ": " + error.message());
  }
  std::sort(bad.begin(), bad.end(), [](const Named& a, const Named& b) { return a.time < b.time; });
  for (size_t i = 0; i + kMaxBad < bad.size(); ++i) {
    fs::remove(directory_ + "/" + bad[i].name, error);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) LoadOne(name, loaded);
  return loaded;
}

Status JobStore::Save(const protocol::JobRecord& record) {
  if (auto made = MakePrivateDirectory(directory_); !made) return made;
  return WriteFileAtomically(PathOf(record.id), EncodeJobFile(record), 0600);
}

Status JobStore::Remove(const std::string& id) {
  const std::string path = PathOf(id);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return Fail(SystemError(errno, "remove", path));
}

}  // namespace mk::daemon
