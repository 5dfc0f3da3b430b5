#include "daemon/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// A mounted hierarchy of control groups that may limit memory.
struct Hierarchy {
  bool version2 = false;
  fs::path top;    // group that the mount point shows
  fs::path mount;  // mount point
};

bool HasWord(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');) {
    if (one == word) return true;
  }
  return false;
}

// mountinfo writes spaces and the like as \ooo.
std::string Unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// A line of mountinfo: "31 23 0:28 ROOT MOUNT OPTIONS [more...] - TYPE SOURCE OPTIONS".
std::optional<Hierarchy> ParseMount(const std::string& line) {
  std::istringstream fields(line);
  std::string skipped, top, mount, word, type, source, options;
  fields >> skipped >> skipped >> skipped >> top >> mount;
  while (fields >> word && word != "-") {
  }
  fields >> type >> source >> options;
  const bool version2 = type == "cgroup2";
  if (!version2 && !(type == "cgroup" && HasWord(options, "memory"))) return std::nullopt;
  return Hierarchy{version2, Unescaped(top), Unescaped(mount)};
}

// Our groups by hierarchy: {"", "/user.slice/..."} in version 2, {"memory", "/..."} in version 1.
std::map<std::string, fs::path> OwnGroups(const fs::path& root) {
  std::map<std::string, fs::path> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) groups[""] = line.substr(second + 1);
    if (HasWord(controllers, "memory")) groups["memory"] = line.substr(second + 1);
  }
  return groups;
}

uint64_t LimitIn(const fs::path& file) {
  std::ifstream stream(file);
  uint64_t value = 0;
  return stream >> value ? value : kNoLimit;  // "max" is no number
}

// Of the group and of those above it, up to the mount point.
uint64_t LimitOf(const Hierarchy& hierarchy, const fs::path& group, const fs::path& root) {
  const char* name = hierarchy.version2 ? "memory.max" : "memory.limit_in_bytes";
  const fs::path mount = root / hierarchy.mount.relative_path();
  // What lies beside the mounted part cannot be seen: then the mount point is all there is.
  fs::path below = group.lexically_relative(hierarchy.top);
  if (below.empty() || *below.begin() == "..") below = ".";
  uint64_t limit = LimitIn(mount / name);
  for (; !below.empty() && below != "."; below = below.parent_path()) {
    limit = std::min(limit, LimitIn(mount / below / name));
  }
  return limit;
}

}  // namespace

uint64_t CgroupMemoryLimit(const fs::path& root) {
  const auto groups = OwnGroups(root);
  uint64_t limit = kNoLimit;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const auto hierarchy = ParseMount(line);
    if (!hierarchy) continue;
    const auto group = groups.find(hierarchy->version2 ? "" : "memory");
    if (group != groups.end()) limit = std::min(limit, LimitOf(*hierarchy, group->second, root));
  }
  return limit;
}

uint64_t DefaultMemoryBudget(const fs::path& root) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_size = sysconf(_SC_PAGESIZE);
  uint64_t machine = uint64_t{4} << 30;
  if (pages > 0 && page_size > 0) {
    machine = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_size);
  }
  return std::min(machine, CgroupMemoryLimit(root)) / 4 * 3;
}

}  // namespace mk::daemon
