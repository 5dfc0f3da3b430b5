// What `mk doctor` looks at, one look each. Nothing is started, made or changed.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/access.h"

namespace mk::client {

enum class Health { kOk, kWarn, kFail };

struct Finding {
  std::string check;  // "socket", "folder state"
  Health health = Health::kOk;
  std::string message;
  std::string remedy;  // where there is something to mend
};
using Findings = std::vector<Finding>;

// The socket, its folder, its lock, and the daemon behind it.
void CheckDaemon(const AccessOptions& access, Findings& findings);
// The config file, and the models that it names or that lie in the models folder.
void CheckConfig(Findings& findings);
// Folders of the config, states, models and caches.
void CheckFolders(Findings& findings);
// Limits of the process, memory, the processor.
void CheckMachine(Findings& findings);

// A folder that is there or can be made. `fill`: things are written to it, which takes space.
Finding CheckFolder(const std::string& name, const std::string& path, bool fill);
// Memory and its limits, from the text of /proc/meminfo and the tightest cgroup limit (UINT64_MAX:
// none).
Finding CheckMemory(const std::string& meminfo, uint64_t cgroup_limit);
// The pid that holds an flock() of a file, by the text of /proc/locks; 0: nobody.
int64_t LockHolder(const std::string& locks, uint64_t device, uint64_t inode);

// What a file of the system holds; "" when it cannot be read.
std::string FileText(const std::string& path);
// "0700"
std::string ModeText(mode_t mode);

}  // namespace mk::client
