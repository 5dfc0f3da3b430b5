#include "daemon/sessions/session_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "daemon/dirs.h"
#include "daemon/record_file.h"
#include "engine/base/atomic_file.h"
#include "engine/base/file.h"
#include "protocol/limits.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;
using protocol::SessionInfo;
using protocol::SessionRecord;
using protocol::SessionTurnRecord;

constexpr std::string_view kMagic("MKSESS1\0", 8);
static_assert(kMagic.size() == kRecordMagicBytes);
constexpr const char* kRecordName = "session";
constexpr std::string_view kPackSuffix = ".mkmem";
constexpr const char* kBadFolder = ".bad";
constexpr uint64_t kMaxRecordBytes = protocol::kLimits.message_bytes;
// Folders that are read at start, and lines about those that cannot be used.
constexpr size_t kMaxSessions = 100'000;
constexpr size_t kMaxTroubles = 100;
constexpr int kMaxBad = 1000;

// The number of a pack's file; 0: it is none.
uint64_t PackNumber(const std::string& file) {
  if (!file.ends_with(kPackSuffix)) return 0;
  uint64_t number = 0;
  const char* end = file.data() + file.size() - kPackSuffix.size();
  const auto [rest, error] = std::from_chars(file.data(), end, number);
  return error == std::errc() && rest == end ? number : 0;
}

std::string PackIn(const std::string& folder, uint64_t pack) {
  return folder + "/" + std::to_string(pack) + std::string(kPackSuffix);
}

std::set<uint64_t> PacksOf(const SessionRecord& record) {
  std::set<uint64_t> packs;
  for (const SessionTurnRecord& turn : record.turns) {
    if (turn.pack != 0) packs.insert(turn.pack);
  }
  return packs;
}

void Forget(SessionTurnRecord& turn) {
  turn.pack = 0;
  turn.state_id.clear();
  turn.pack_bytes = 0;
}

void ForgetBeyond(const SessionLimits& limits, SessionRecord& record) {
  uint64_t states = 0;
  uint64_t bytes = 0;
  for (auto turn = record.turns.rbegin(); turn != record.turns.rend(); ++turn) {
    if (turn->pack == 0) continue;
    bytes += turn->pack_bytes;
    const bool fits = states < limits.states && bytes <= limits.state_bytes;
    if (states > 0 && !fits) Forget(*turn);
    ++states;
  }
}

tl::unexpected<Error> NoSession(const std::string& name) {
  return Fail(ErrorCode::kNotFound, "no session " + name, "`mk session ls` lists them");
}

// Removes what a record does not name: packs that fell out, and what was left half-written.
void Sweep(const std::string& folder, const SessionRecord& record) {
  const std::set<uint64_t> packs = PacksOf(record);
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    const uint64_t number = PackNumber(file);
    const bool left = number != 0 && packs.count(number) == 0;
    const bool temporary = file.find(".tmp.") != std::string::npos;
    if (left || temporary) ::unlink(it->path().c_str());
  }
}

// A second name for a file that nobody writes to any more; where the file system has none, a copy.
Status LinkFile(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return {};
  const int reason = errno;
  if (reason != EPERM && reason != EMLINK && reason != EOPNOTSUPP) {
    return Fail(SystemError(reason, "link " + to + " to", from));
  }
  std::error_code error;
  fs::copy_file(from, to, error);
  if (error) return Fail(SystemError(error.value(), "copy", from));
  return {};
}

// The packs of `record`, which are in `from`, in `to` as well. Forgets those that are gone.
Status LinkPacks(const std::string& from, const std::string& to, SessionRecord& record) {
  std::set<uint64_t> linked;
  for (SessionTurnRecord& turn : record.turns) {
    if (turn.pack == 0 || linked.count(turn.pack) > 0) continue;
    Status status = LinkFile(PackIn(from, turn.pack), PackIn(to, turn.pack));
    if (status) {
      linked.insert(turn.pack);
    } else if (status.error().code == ErrorCode::kNotFound) {
      Forget(turn);
    } else {
      return status;
    }
  }
  return {};
}

}  // namespace

uint64_t WallClockMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
}

void SessionStore::Trouble(std::string text) {
  spdlog::warn("{}", text);
  if (troubles_.size() < kMaxTroubles) troubles_.push_back(std::move(text));
}

Status SessionStore::Load() {
  if (loaded_) return {};
  if (auto made = MakePrivateDirectory(directory_); !made) return made;
  sessions_.clear();
  troubles_.clear();
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name == kBadFolder) continue;
    if (name.starts_with('.')) {
      fs::remove_all(it->path(), ignored);
    } else if (names.size() < kMaxSessions) {
      names.push_back(name);
    }
  }
  if (error) return Fail(SystemError(error.value(), "list", directory_));
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) LoadOne(name);
  loaded_ = true;
  return {};
}

void SessionStore::LoadOne(const std::string& name) {
  const std::string folder = FolderOf(name);
  if (!protocol::IsSessionName(name)) return Trouble(folder + " is no session: it is left alone");
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(folder, ignored))) {
    return Trouble(folder + " is no folder: it is left alone");
  }
  auto record = ReadFolder(folder);
  if (record) {
    Sweep(folder, *record);
    Index(name, *record);
  } else if (record.error().code == ErrorCode::kCorrupt) {
    SetAside(name, record.error().message);
  } else {
    Trouble(folder + " is left alone: " + record.error().message);
  }
}

Result<SessionRecord> SessionStore::ReadFolder(const std::string& folder) const {
  const std::string path = folder + "/" + kRecordName;
  auto bytes = ReadWholeFile(path, kMaxRecordBytes);
  if (!bytes) {
    const ErrorCode code = bytes.error().code;
    const bool damaged = code == ErrorCode::kNotFound || code == ErrorCode::kInvalidArgument;
    return Fail(damaged ? ErrorCode::kCorrupt : code, bytes.error().message);
  }
  auto payload = DecodeRecordFile(kMagic, "record of a session", *bytes);
  if (!payload) return Fail(payload.error());
  auto record = protocol::DecodeSessionRecord(*payload);
  if (record) return std::move(*record);
  const bool newer = record.error().code == protocol::ErrorCode::kUnsupportedVersion;
  return Fail(newer ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, record.error().message);
}

void SessionStore::SetAside(const std::string& name, const std::string& reason) {
  const std::string bad = FolderOf(kBadFolder);
  std::string text = "session " + name + " is damaged: " + reason;
  sessions_.erase(name);
  if (auto made = MakePrivateDirectory(bad); !made) {
    return Trouble(text + "; " + made.error().message);
  }
  for (int i = 1; i <= kMaxBad; ++i) {
    const std::string place = bad + "/" + name + "-" + std::to_string(i);
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(place, ignored))) continue;
    if (::rename(FolderOf(name).c_str(), place.c_str()) == 0) {
      return Trouble(text + "; it is set aside as " + place);
    }
    return Trouble(text + "; " + SystemError(errno, "rename", FolderOf(name)).message);
  }
  Trouble(text + "; " + bad + " is full");
}

std::vector<SessionInfo> SessionStore::List() const {
  std::vector<SessionInfo> list;
  list.reserve(sessions_.size());
  for (const auto& [name, info] : sessions_) list.push_back(info);
  return list;
}

const SessionInfo& SessionStore::Index(const std::string& name, const SessionRecord& record) {
  SessionInfo info;
  info.name = name;
  info.kind = record.kind;
  info.model = record.model.model;
  info.fingerprint = record.fingerprint;
  info.precision = record.precision;
  info.turns = record.turns.size();
  info.tokens = protocol::CountTokens(record);
  std::set<uint64_t> packs;
  for (const SessionTurnRecord& turn : record.turns) {
    if (turn.pack == 0) continue;
    ++info.states;
    if (packs.insert(turn.pack).second) info.disk_bytes += turn.pack_bytes;
  }
  info.created_ms = record.created_ms;
  info.used_ms = record.used_ms;
  info.forked_from = record.forked_from;
  return sessions_.insert_or_assign(name, std::move(info)).first->second;
}

Result<SessionRecord> SessionStore::Read(const std::string& name) {
  if (!Has(name)) return NoSession(name);
  auto record = ReadFolder(FolderOf(name));
  if (!record && record.error().code == ErrorCode::kCorrupt) {
    const std::string reason = record.error().message;
    SetAside(name, reason);
    return Fail(ErrorCode::kCorrupt, "session " + name + " is damaged: " + reason,
                "it was set aside in " + FolderOf(kBadFolder));
  }
  return record;
}

Status SessionStore::CheckFree(const std::string& name) const {
  std::error_code ignored;
  if (Has(name)) {
    return Fail(ErrorCode::kInvalidArgument, "there is a session " + name + " already",
                "choose another name, or remove it: mk session rm " + name);
  }
  if (!fs::exists(fs::symlink_status(FolderOf(name), ignored))) return {};
  return Fail(ErrorCode::kInvalidArgument, FolderOf(name) + " is there and is no session",
              "choose another name, or move it away");
}

Result<std::string> SessionStore::NewFolder() {
  const std::string folder = FolderOf(".new-" + std::to_string(next_folder_++));
  if (auto made = MakePrivateDirectory(folder); !made) return Fail(made.error());
  return folder;
}

// The folder gets its name; one that fails is removed. What is in it was synced with its record.
Status SessionStore::Publish(const std::string& folder, const std::string& name) {
  std::string place = folder;
  Status status = CheckFree(name);
  if (status && ::rename(folder.c_str(), FolderOf(name).c_str()) != 0) {
    status = Fail(SystemError(errno, "rename " + folder + " to", FolderOf(name)));
  } else if (status) {
    place = FolderOf(name);
    status = SyncDirectory(directory_);
  }
  std::error_code ignored;
  if (!status) fs::remove_all(place, ignored);
  return status;
}

// After a change that failed: what is on disk is the session, be it the old one or the new.
void SessionStore::Settle(const std::string& name) {
  const auto record = ReadFolder(FolderOf(name));
  if (!record) return;
  Sweep(FolderOf(name), *record);
  Index(name, *record);
}

// The pack first, then the record that names it.
Status SessionStore::WriteInto(const std::string& folder, SessionRecord& record,
                               const WritePack& write) const {
  if (auto fits = protocol::CheckSessionSize(record); !fits) {
    return Fail(ErrorCode::kContextOverflow, fits.error().message, fits.error().hint);
  }
  if (write) {
    SessionTurnRecord& turn = record.turns.back();
    const uint64_t number = record.next_pack++;
    auto written = write(PackIn(folder, number));
    if (!written) return Fail(written.error());
    turn.pack = number;
    turn.state_id = written->state_id;
    turn.pack_bytes = written->file_bytes;
  }
  ForgetBeyond(limits_, record);
  return WriteFileAtomically(folder + "/" + kRecordName,
                             EncodeRecordFile(kMagic, protocol::EncodeSessionRecord(record)), 0600);
}

Result<SessionInfo> SessionStore::Keep(const std::string& name, SessionRecord& record,
                                       const WritePack& write) {
  if (Has(name)) {
    const std::string folder = FolderOf(name);
    if (auto written = WriteInto(folder, record, write); !written) {
      Settle(name);
      return Fail(written.error());
    }
    Sweep(folder, record);
    return Index(name, record);
  }
  if (auto free = CheckFree(name); !free) return Fail(free.error());
  auto folder = NewFolder();
  if (!folder) return Fail(folder.error());
  if (auto written = WriteInto(*folder, record, write); !written) {
    std::error_code ignored;
    fs::remove_all(*folder, ignored);
    return Fail(written.error());
  }
  if (auto published = Publish(*folder, name); !published) return Fail(published.error());
  return Index(name, record);
}

Result<SessionInfo> SessionStore::Fork(const std::string& from, const std::string& name,
                                       std::optional<uint64_t> turns) {
  auto record = Read(from);
  if (!record) return Fail(record.error());
  if (auto free = CheckFree(name); !free) return Fail(free.error());
  if (turns && *turns > record->turns.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                "session " + from + " has " + std::to_string(record->turns.size()) +
                    (record->turns.size() == 1 ? " turn, not " : " turns, not ") +
                    std::to_string(*turns),
                "`mk session info " + from + "` shows them");
  }
  if (turns) record->turns.resize(*turns);
  record->forked_from = from;
  record->created_ms = record->used_ms = WallClockMs();
  auto folder = NewFolder();
  if (!folder) return Fail(folder.error());
  Status made = LinkPacks(FolderOf(from), *folder, *record);
  if (made) made = WriteInto(*folder, *record, nullptr);
  if (!made) {
    std::error_code ignored;
    fs::remove_all(*folder, ignored);
    return Fail(made.error());
  }
  if (auto published = Publish(*folder, name); !published) return Fail(published.error());
  return Index(name, *record);
}

Result<SessionInfo> SessionStore::Rename(const std::string& from, const std::string& name) {
  if (!Has(from)) return NoSession(from);
  if (auto free = CheckFree(name); !free) return Fail(free.error());
  if (::rename(FolderOf(from).c_str(), FolderOf(name).c_str()) != 0) {
    return Fail(SystemError(errno, "rename", FolderOf(from)));
  }
  auto entry = sessions_.extract(from);
  entry.key() = name;
  entry.mapped().name = name;
  const SessionInfo info = sessions_.insert(std::move(entry)).position->second;
  if (auto synced = SyncDirectory(directory_); !synced) return Fail(synced.error());
  return info;
}

Status SessionStore::Remove(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!Has(name)) return NoSession(name);
  }
  std::vector<std::string> gone;
  Status status;
  for (const std::string& name : names) {
    if (!Has(name)) continue;  // named twice
    const std::string place = FolderOf(".gone-" + std::to_string(next_folder_++));
    if (::rename(FolderOf(name).c_str(), place.c_str()) != 0) {
      status = Fail(SystemError(errno, "remove", FolderOf(name)));
      break;
    }
    sessions_.erase(name);
    gone.push_back(place);
  }
  if (Status synced = SyncDirectory(directory_); status && !synced) status = synced;
  for (const std::string& place : gone) {
    std::error_code ignored;
    fs::remove_all(place, ignored);
  }
  return status;
}

std::string SessionStore::PackPath(const std::string& name, uint64_t pack) const {
  return PackIn(FolderOf(name), pack);
}

void SessionStore::SetPackAside(const std::string& name, uint64_t pack, const std::string& reason) {
  const std::string path = PackPath(name, pack);
  Trouble("a state of session " + name + " is damaged and set aside: " + reason);
  if (::rename(path.c_str(), (path + ".bad").c_str()) != 0 && errno != ENOENT) {
    Trouble(SystemError(errno, "rename", path).message);
  }
}

}  // namespace mk::daemon
