// Makes calls of the C library fail on demand: LD_PRELOAD=mk_fault_shim.so MK_FAULTS=FILE.
//
// The file holds rules, one a line, and is read again whenever it changed:
//
//   CALL PART HOW [AFTER]
//
// CALL  read, write, sync, open, or clock
// PART  what the path contains; * for any
// HOW   an errno by name (EIO, ENOSPC, EACCES, EINTR); short: half of the bytes, at most; hold: not
//       before the rules change. EINTR hits every other call only, as signals do.
// AFTER calls that still succeed
//
// `clock - SECONDS` moves the wall clock (CLOCK_REALTIME) by so much. The monotonic clock stays.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace {

enum class Call { kRead, kWrite, kSync, kOpen };
enum class How { kError, kShort, kHold };

struct Rule {
  Call call = Call::kRead;
  std::string part;
  How how = How::kError;
  int error = 0;
  long after = 0;     // calls that still succeed
  bool skip = false;  // EINTR: the next call gets through
};

constexpr size_t kMaxRules = 16;

std::mutex mutex;
std::array<Rule, kMaxRules> rules;
size_t rule_count = 0;
struct timespec rules_time {};
std::atomic<long> clock_shift{0};
std::atomic<bool> any{false};

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int ErrorOf(std::string_view name) {
  if (name == "EIO") return EIO;
  if (name == "ENOSPC") return ENOSPC;
  if (name == "EACCES") return EACCES;
  if (name == "EINTR") return EINTR;
  if (name == "EMFILE") return EMFILE;
  return 0;
}

void AddRule(const char* line) {
  char call[16];
  char part[256];
  char how[16];
  long after = 0;
  if (sscanf(line, "%15s %255s %15s %ld", call, part, how, &after) < 3) return;
  const std::string_view name = call;
  if (name == "clock") {
    clock_shift.store(strtol(how, nullptr, 10));
    return;
  }
  if (rule_count == kMaxRules) return;
  Rule rule;
  rule.call = name == "read"    ? Call::kRead
              : name == "write" ? Call::kWrite
              : name == "sync"  ? Call::kSync
                                : Call::kOpen;
  rule.part = std::string_view(part) == "*" ? "" : part;
  rule.how = std::string_view(how) == "short"  ? How::kShort
             : std::string_view(how) == "hold" ? How::kHold
                                               : How::kError;
  rule.error = ErrorOf(how);
  rule.after = after;
  rules[rule_count++] = rule;
}

// With system calls of its own: the wrappers below must not see them.
void ReadRules() {
  static const char* const path = getenv("MK_FAULTS");
  if (path == nullptr) return;
  struct stat info {};
  if (syscall(SYS_newfstatat, AT_FDCWD, path, &info, 0) != 0) return;
  if (info.st_mtim.tv_sec == rules_time.tv_sec && info.st_mtim.tv_nsec == rules_time.tv_nsec) {
    return;
  }
  rules_time = info.st_mtim;
  rule_count = 0;
  clock_shift.store(0);
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return;
  char text[4096];
  const long got = syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  if (got < 0) return;
  text[got] = 0;
  char* rest = nullptr;
  for (char* line = strtok_r(text, "\n", &rest); line != nullptr;
       line = strtok_r(nullptr, "\n", &rest)) {
    AddRule(line);
  }
  any.store(rule_count > 0);
}

std::string PathOf(int fd) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  char path[4096];
  const long got = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path);
  return got > 0 ? std::string(path, static_cast<size_t>(got)) : std::string();
}

struct Verdict {
  int error = 0;      // fail with this
  bool half = false;  // move half of the bytes
};

Verdict Judge(Call call, const std::string& path) {
  bool held = false;
  struct timespec since {};
  Verdict verdict;
  {
    const std::lock_guard lock(mutex);
    since = rules_time;
    for (size_t i = 0; i < rule_count; ++i) {
      Rule& rule = rules[i];
      if (rule.call != call || path.find(rule.part) == std::string::npos) continue;
      if (rule.after > 0) {
        --rule.after;
        continue;
      }
      if (rule.how == How::kHold) held = true;
      if (rule.how == How::kShort) verdict.half = true;
      if (rule.how != How::kError) continue;
      if (rule.error == EINTR) {
        rule.skip = !rule.skip;
        if (!rule.skip) continue;
      }
      verdict.error = rule.error;
    }
  }
  while (held) {
    const struct timespec moment = {0, 2'000'000};
    syscall(SYS_nanosleep, &moment, nullptr);
    const std::lock_guard lock(mutex);
    ReadRules();
    held = since.tv_sec == rules_time.tv_sec && since.tv_nsec == rules_time.tv_nsec;
  }
  return verdict;
}

Verdict JudgeFd(Call call, int fd) {
  const int saved = errno;
  {
    const std::lock_guard lock(mutex);
    ReadRules();
  }
  Verdict verdict;
  if (any.load()) verdict = Judge(call, PathOf(fd));
  errno = saved;
  return verdict;
}

Verdict JudgePath(const char* path) {
  const int saved = errno;
  {
    const std::lock_guard lock(mutex);
    ReadRules();
  }
  Verdict verdict;
  if (any.load() && path != nullptr) verdict = Judge(Call::kOpen, path);
  errno = saved;
  return verdict;
}

template <typename Buffer>
ssize_t Transfer(const char* name, Call call, int fd, Buffer buffer, size_t size, off_t offset) {
  const Verdict verdict = JudgeFd(call, fd);
  if (verdict.error != 0) {
    errno = verdict.error;
    return -1;
  }
  if (verdict.half && size > 1) size /= 2;
  return Next<ssize_t (*)(int, Buffer, size_t, off_t)>(name)(fd, buffer, size, offset);
}

int Open(int directory, const char* path, int flags, unsigned mode) {
  if (const Verdict verdict = JudgePath(path); verdict.error != 0) {
    errno = verdict.error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
}

unsigned ModeOf(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, unsigned) : 0;
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* buffer, size_t size, off_t offset) {
  return Transfer("pread", Call::kRead, fd, buffer, size, offset);
}
ssize_t pread64(int fd, void* buffer, size_t size, off_t offset) {
  return Transfer("pread64", Call::kRead, fd, buffer, size, offset);
}
ssize_t pwrite(int fd, const void* buffer, size_t size, off_t offset) {
  return Transfer("pwrite", Call::kWrite, fd, buffer, size, offset);
}
ssize_t pwrite64(int fd, const void* buffer, size_t size, off_t offset) {
  return Transfer("pwrite64", Call::kWrite, fd, buffer, size, offset);
}

int fsync(int fd) {
  if (const Verdict verdict = JudgeFd(Call::kSync, fd); verdict.error != 0) {
    errno = verdict.error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (const Verdict verdict = JudgeFd(Call::kWrite, fd); verdict.error != 0) {
    errno = verdict.error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const unsigned mode = ModeOf(flags, list);
  va_end(list);
  return Open(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const unsigned mode = ModeOf(flags, list);
  va_end(list);
  return Open(AT_FDCWD, path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  // Called all the time: the rules are looked at when a file is touched.
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += clock_shift.load();
  return result;
}

}  // extern "C"
