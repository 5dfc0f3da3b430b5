#include "daemon/help.h"

#include <cstring>

namespace mk::daemon {
namespace {

constexpr HelpLine kExamples[] = {
    {"microkimid", "start in the background on the default socket"},
    {"microkimid --foreground", "stay, log to standard error"},
    {"microkimid --socket ~/mk2/s --memory 4GiB --idle-exit 30m",
     "a second daemon, which leaves when nobody needs it"},
    {"microkimid --precision exact", "runs that do not ask for another precision are in f32"},
};

constexpr HelpLine kExits[] = {
    {"0", "done, or a daemon runs already"},
    {"2", "the command line is wrong"},
    {"3", "it could not start"},
    {"75", "its program was replaced while it had nothing to do; systemd starts the new one"},
};

constexpr HelpLine kSignals[] = {
    {"SIGTERM, SIGINT",
     "take no new work, let what runs end within 3 seconds, end what still runs, leave; a second "
     "one: at once"},
    {"SIGHUP", "read the config file again"},
};

constexpr HelpLine kEnvironment[] = {
    {"MICROKIMI_SOCKET", "path of the socket, where --socket names none"},
    {"XDG_RUNTIME_DIR, XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_DATA_HOME, XDG_CACHE_HOME",
     "where the files below are"},
    {"LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES",
     "a listening socket from systemd, which is then used in place of one of its own"},
    {"NOTIFY_SOCKET, WATCHDOG_USEC",
     "where systemd hears that the daemon is ready, what it does, and that its engine is alive"},
};

constexpr HelpLine kFiles[] = {
    {"$XDG_RUNTIME_DIR/microkimi/microkimid.sock",
     "the socket; beside it lock and pid (without XDG_RUNTIME_DIR: /run/user/UID)"},
    {"~/.config/microkimi/config.toml", "settings"},
    {"~/.local/state/microkimi/microkimid.log", "the log; of 8 MiB each, three are kept"},
    {"~/.local/share/microkimi/models", "models that can be named"},
    {"~/.cache/microkimi/spines", "prepared weights; can be removed at any time"},
};

// Terms in a column; a longer one has its text on the next line.
void AddTable(std::string& text, const char* title, std::span<const HelpLine> lines, size_t width) {
  text.append(title).append(":\n");
  for (const HelpLine& line : lines) {
    const size_t used = std::strlen(line.term);
    text.append("  ").append(line.term);
    if (used >= width) text.append("\n  ");
    text.append(used < width ? width - used : width, ' ').append(line.text).append("\n");
  }
}

}  // namespace

std::span<const HelpLine> ExampleLines() {
  return kExamples;
}
std::span<const HelpLine> ExitLines() {
  return kExits;
}
std::span<const HelpLine> SignalLines() {
  return kSignals;
}
std::span<const HelpLine> EnvironmentLines() {
  return kEnvironment;
}
std::span<const HelpLine> FileLines() {
  return kFiles;
}

std::string HelpFooter() {
  std::string text;
  AddTable(text, "Examples", kExamples, 31);
  AddTable(text, "\nSignals", kSignals, 17);
  AddTable(text, "\nExit codes", kExits, 5);
  AddTable(text, "\nEnvironment", kEnvironment, 18);
  AddTable(text, "\nFiles", kFiles, 44);
  text.pop_back();  // CLI11 adds one
  return text;
}

}  // namespace mk::daemon
