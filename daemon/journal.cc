#include "daemon/journal.h"

#include <sys/stat.h>
#include <systemd/sd-login.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace mk::daemon {
namespace {

bool StandardErrorIsTheJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  unsigned long device = 0;
  unsigned long inode = 0;
  struct stat info = {};
  return stream != nullptr && std::sscanf(stream, "%lu:%lu", &device, &inode) == 2 &&
         fstat(STDERR_FILENO, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

struct FreeText {
  void operator()(char* text) const { std::free(text); }
};

}  // namespace

std::string JournalUnit() {
  if (!StandardErrorIsTheJournal()) return {};
  char* unit = nullptr;
  if (sd_pid_get_user_unit(0, &unit) < 0) return "microkimid.service";
  const std::unique_ptr<char, FreeText> owned(unit);
  return owned.get();
}

}  // namespace mk::daemon
