// SessionStore: the sessions on disk, one folder each.
//
//   <directory>/<name>/session    a SessionRecord in a record file of the magic "MKSESS1\0"
//   <directory>/<name>/<N>.mkmem  the state after a turn (engine/pack); written once
//
// A change is a record that replaces the old one at once; packs that it names are there before, and
// those that it names no more go after. So a daemon that dies at any moment leaves the old session
// or the new one. New sessions, forks and those that are to go have names of their own beginning
// with '.', and get their name, or lose it, by renaming the folder.
//
// A folder whose record is damaged is moved to <directory>/.bad, a pack that is damaged to
// <N>.mkmem.bad; neither is tried again.
//
// Blocks on the disk. Not thread-safe.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/pack/pack_format.h"
#include "protocol/session_record.h"

namespace mk::daemon {

// How many of its last states a session keeps, and how many bytes of them; the last one always.
struct SessionLimits {
  uint64_t states = 8;
  uint64_t state_bytes = uint64_t{1} << 30;
};

class SessionStore {
 public:
  explicit SessionStore(std::string directory) : directory_(std::move(directory)) {}

  void SetLimits(const SessionLimits& limits) { limits_ = limits; }
  // Reads the records of all sessions, makes the folder, and cleans up what a daemon that died left
  // half-done. Errors: kPermissionDenied, kIo; the next call tries again. After it succeeded, does
  // nothing. All that follow are for afterwards.
  Status Load();

  // By name, without what runs.
  std::vector<protocol::SessionInfo> List() const;
  bool Has(const std::string& name) const { return sessions_.count(name) > 0; }
  // kInvalidArgument for a name that is taken.
  Status CheckFree(const std::string& name) const;
  // What could not be used since the start, one line each.
  const std::vector<std::string>& troubles() const { return troubles_; }

  // Errors: kNotFound; kCorrupt, and the session is set aside; kIo, kPermissionDenied.
  Result<protocol::SessionRecord> Read(const std::string& name);

  // Writes a pack to the path that it is given.
  using WritePack = std::function<Result<PackInfo>(const std::string& path)>;
  // Makes `record` the session of this name, which may be a new one. With `write`, the state after
  // its last turn is kept. Forgets in `record` the states beyond the limits. Errors:
  // kContextOverflow (see CheckSessionSize), kIo, kPermissionDenied, those of `write`; the session
  // is then as it was.
  Result<protocol::SessionInfo> Keep(const std::string& name, protocol::SessionRecord& record,
                                     const WritePack& write = nullptr);
  // Errors of these: kNotFound, kInvalidArgument (the new name is taken, more turns than there
  // are), those of Read and Keep.
  Result<protocol::SessionInfo> Fork(const std::string& from, const std::string& name,
                                     std::optional<uint64_t> turns);
  Result<protocol::SessionInfo> Rename(const std::string& from, const std::string& name);
  // All of them, or none if one is not there.
  Status Remove(const std::vector<std::string>& names);

  std::string PackPath(const std::string& name, uint64_t pack) const;
  // For one that turned out to be damaged. The session's record still names it.
  void SetPackAside(const std::string& name, uint64_t pack, const std::string& reason);

  const std::string& directory() const { return directory_; }

 private:
  std::string FolderOf(const std::string& name) const { return directory_ + "/" + name; }
  Result<std::string> NewFolder();
  Status Publish(const std::string& folder, const std::string& name);
  void Settle(const std::string& name);
  Status WriteInto(const std::string& folder, protocol::SessionRecord& record,
                   const WritePack& write) const;
  Result<protocol::SessionRecord> ReadFolder(const std::string& folder) const;
  void LoadOne(const std::string& name);
  void SetAside(const std::string& name, const std::string& reason);
  void Trouble(std::string text);
  const protocol::SessionInfo& Index(const std::string& name,
                                     const protocol::SessionRecord& record);

  const std::string directory_;
  SessionLimits limits_;
  bool loaded_ = false;
  uint64_t next_folder_ = 1;
  std::map<std::string, protocol::SessionInfo> sessions_;
  std::vector<std::string> troubles_;
};

// Milliseconds since 1970.
uint64_t WallClockMs();

}  // namespace mk::daemon
