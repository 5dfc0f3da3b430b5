#include "daemon/process_usage.h"

#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

namespace mk::daemon {
namespace {

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

uint64_t CountThreads() {
  const std::unique_ptr<FILE, CloseFile> file(std::fopen("/proc/self/status", "re"));
  if (!file) return 0;
  char line[256];
  unsigned long threads = 0;
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    if (std::sscanf(line, "Threads: %lu", &threads) == 1) return threads;
  }
  return 0;
}

uint64_t CountOpenFds() {
  const std::unique_ptr<DIR, CloseDirectory> directory(opendir("/proc/self/fd"));
  if (!directory) return 0;
  uint64_t count = 0;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] != '.') ++count;
  }
  return count > 0 ? count - 1 : 0;  // the directory's own
}

}  // namespace

uint64_t ResidentBytes() {
  const std::unique_ptr<FILE, CloseFile> file(std::fopen("/proc/self/statm", "re"));
  unsigned long total = 0;
  unsigned long resident = 0;
  if (!file || std::fscanf(file.get(), "%lu %lu", &total, &resident) != 2) return 0;
  return uint64_t{resident} * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

ProcessUsage MeasureProcess() {
  ProcessUsage usage;
  timespec cpu{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    usage.cpu_seconds = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
  }
  usage.resident_bytes = ResidentBytes();
  usage.threads = CountThreads();
  usage.open_fds = CountOpenFds();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) usage.max_fds = limit.rlim_cur;
  return usage;
}

}  // namespace mk::daemon
