#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "cli/folders.h"
#include "client/config_view.h"
#include "client/doctor.h"
#include "client/progress.h"

namespace mk::client {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Less free space than this is short, or none at all: states and prepared weights take megabytes.
constexpr uint64_t kShortSpace = 1024 * kMiB;
constexpr uint64_t kNoSpace = 64 * kMiB;
// The bundled model and its states fit; anything larger will not.
constexpr uint64_t kShortMemory = 512 * kMiB;
// Each client takes a descriptor, and each model a few.
constexpr rlim_t kFewFiles = 1024;

// The folder, or the nearest one above it that is there.
std::string NearestFolder(std::string path) {
  struct stat info = {};
  while (path.size() > 1 && ::stat(path.c_str(), &info) != 0) path.resize(path.rfind('/'));
  return path.empty() ? "/" : path;
}

Finding FolderSpace(Finding finding, const std::string& place) {
  struct statvfs disk = {};
  if (::statvfs(place.c_str(), &disk) != 0) return finding;
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  finding.message += ", " + BytesText(free) + " free";
  if (free >= kShortSpace) return finding;
  finding.health = free < kNoSpace ? Health::kFail : Health::kWarn;
  finding.remedy = "free some space on the disk of " + place;
  return finding;
}

// kB of a line of /proc/meminfo, as bytes; 0: it has none.
uint64_t MemoryLine(const std::string& meminfo, const std::string& name) {
  std::istringstream lines(meminfo);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream rest(line.substr(name.size() + 1));
    uint64_t kib = 0;
    return rest >> kib ? kib << 10 : 0;
  }
  return 0;
}

// The tightest limit of our cgroup and those above it.
uint64_t CgroupLimit() {
  uint64_t limit = UINT64_MAX;
  std::istringstream lines(FileText("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("0::/")) continue;
    for (std::string group = line.substr(3);; group.resize(group.rfind('/'))) {
      std::istringstream text(FileText("/sys/fs/cgroup" + group + "/memory.max"));
      uint64_t bytes = 0;
      if (text >> bytes) limit = std::min(limit, bytes);  // "max" is no number
      if (group.empty() || group == "/") break;
    }
  }
  return limit;
}

Finding Processor() {
#if defined(__x86_64__)
  std::string features;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features = "AVX2";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
    features += ", AVX-512";
  if (__builtin_cpu_supports("avx512vnni")) features += " with VNNI";
  if (!features.empty()) return {"processor", Health::kOk, "has " + features, ""};
  return {"processor", Health::kWarn, "has no AVX2 with FMA: models run many times slower",
          "use another machine, or let the virtual one show its processor (host-passthrough)"};
#else
  return {"processor", Health::kOk, "its vector instructions are used as they are", ""};
#endif
}

Finding OpenFiles() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return {"open files", Health::kWarn, std::strerror(errno), "ulimit -Hn shows the limit"};
  }
  const bool none = limit.rlim_max == RLIM_INFINITY;
  const std::string many = none ? "any number" : "up to " + std::to_string(limit.rlim_max);
  if (none || limit.rlim_max >= kFewFiles) return {"open files", Health::kOk, many, ""};
  return {"open files", Health::kWarn, many + ": few clients at once",
          "raise it (ulimit -Hn; of a service: LimitNOFILE=), then mk restart"};
}

Finding AddressSpace() {
  rlimit limit = {};
  const bool read = ::getrlimit(RLIMIT_AS, &limit) == 0;
  if (!read || limit.rlim_cur == RLIM_INFINITY) {
    return {"address space", Health::kOk, "no limit", ""};
  }
  return {"address space", Health::kWarn,
          "limited to " + BytesText(limit.rlim_cur) + ": larger model files cannot be mapped",
          "ulimit -v unlimited, then mk restart"};
}

// A file of a model that the config names.
Finding NamedModel(const std::string& key, const std::string& path) {
  struct stat info = {};
  const std::string check = "model " + key;
  std::string why;
  if (::stat(path.c_str(), &info) != 0 || ::access(path.c_str(), R_OK) != 0) {
    why = std::strerror(errno);
  } else if (!S_ISREG(info.st_mode)) {
    why = "not a regular file";
  } else if (info.st_size == 0) {
    why = "empty";
  }
  if (why.empty()) {
    return {check, Health::kOk, path + ", " + BytesText(static_cast<uint64_t>(info.st_size)), ""};
  }
  return {check, Health::kWarn, path + ": " + why,
          "mk config set " + key + " PATH, or mk config unset " + key};
}

}  // namespace

std::string FileText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string ModeText(mode_t mode) {
  std::array<char, 16> text;
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode & 07777));
  return text.data();
}

Finding CheckFolder(const std::string& name, const std::string& path, bool fill) {
  const std::string check = "folder " + name;
  struct stat info = {};
  const std::string place = NearestFolder(path);
  if (::stat(place.c_str(), &info) != 0) {
    return {check, Health::kFail, path + ": " + std::strerror(errno), "ls -ld " + place};
  }
  if (!S_ISDIR(info.st_mode)) {
    return {check, Health::kFail, place + " is not a folder", "remove the file, or rename it"};
  }
  if (::access(place.c_str(), fill ? R_OK | W_OK | X_OK : R_OK | X_OK) != 0) {
    return {check, Health::kFail, place + " may not be " + (fill ? "written" : "read"),
            "ls -ld " + place + "; make it yours with chown, chmod u+rwx"};
  }
  if (place != path) {
    Finding missing{check, Health::kOk, path + " is made when it is needed", ""};
    return fill ? FolderSpace(std::move(missing), place) : missing;
  }
  if (info.st_uid != ::geteuid()) {
    return {check, Health::kWarn, path + " belongs to user " + std::to_string(info.st_uid),
            "sudo chown -R \"$USER\" " + path};
  }
  if ((info.st_mode & 0022) != 0) {
    return {check, Health::kWarn,
            path + " may be changed by others, its mode is " + ModeText(info.st_mode),
            "chmod go-w " + path};
  }
  Finding fine{check, Health::kOk, path + ", mode " + ModeText(info.st_mode), ""};
  return fill ? FolderSpace(std::move(fine), path) : fine;
}

Finding CheckMemory(const std::string& meminfo, uint64_t cgroup_limit) {
  const uint64_t total = MemoryLine(meminfo, "MemTotal");
  const uint64_t available = MemoryLine(meminfo, "MemAvailable");
  std::string message = BytesText(available) + " of " + BytesText(total) + " available";
  const bool limited = cgroup_limit < total;
  if (limited) message += ", the cgroup allows " + BytesText(cgroup_limit);
  if (std::min(available, cgroup_limit) >= kShortMemory) {
    return {"memory", Health::kOk, message, ""};
  }
  return {"memory", Health::kWarn, message,
          limited && cgroup_limit < available ? "raise the cgroup's memory.max (MemoryMax=)"
                                              : "end other programs, or mk unload --all"};
}

void CheckFolders(Findings& findings) {
  const std::string config = cli::ConfigFile();
  findings.push_back(CheckFolder("config", config.substr(0, config.rfind('/')), false));
  findings.push_back(CheckFolder("state", cli::StateFolder(), true));
  findings.push_back(CheckFolder("models", cli::ModelsFolder(), false));
  findings.push_back(CheckFolder("cache", cli::CacheFolder(), true));
}

void CheckMachine(Findings& findings) {
  findings.push_back(CheckMemory(FileText("/proc/meminfo"), CgroupLimit()));
  findings.push_back(OpenFiles());
  findings.push_back(AddressSpace());
  findings.push_back(Processor());
}

void CheckConfig(Findings& findings) {
  auto file = ReadConfig(cli::ConfigFile());
  if (!file) {
    const std::string& hint = file.error().hint;
    findings.push_back({"config", Health::kFail, file.error().message,
                        hint.empty() ? "ls -l " + cli::ConfigFile() : hint});
    return;
  }
  for (const cli::ConfigProblem& problem : file->read.problems) {
    findings.push_back({"config", problem.fatal ? Health::kFail : Health::kWarn,
                        ProblemLine(*file, problem), problem.hint});
  }
  if (file->read.problems.empty()) {
    const char* state = file->exists ? " is fine" : ": there is none, defaults count";
    findings.push_back({"config", Health::kOk, file->path + state, ""});
  }
  for (const cli::ConfigEntry& entry : file->read.entries) {
    if (!entry.value) continue;
    const auto* text = std::get_if<std::string>(&*entry.value);
    if (text == nullptr || text->find('/') == std::string::npos) continue;  // a name, no path
    if (entry.in_table()) findings.push_back(NamedModel("aliases." + entry.name, *text));
    if (entry.name == "default_model") findings.push_back(NamedModel(entry.name, *text));
  }
}

}  // namespace mk::client
