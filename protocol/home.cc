#include "protocol/home.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace mk::protocol {

std::string HomeDirectory() {
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') return home;
  // Services and cron jobs run without the variable.
  const passwd* entry = ::getpwuid(::geteuid());
  const bool known = entry != nullptr && entry->pw_dir != nullptr && entry->pw_dir[0] == '/';
  return known ? entry->pw_dir : "";
}

}  // namespace mk::protocol
