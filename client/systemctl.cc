#include "client/systemctl.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "client/child_process.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

// The daemon has 30 seconds to leave when its unit is stopped.
constexpr milliseconds kPatience{60'000};

Result<ProgramEnd> Call(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"systemctl", "--user", "--no-pager"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::map<std::string, std::string> variables = {{"LC_ALL", "C"}};
  // After `su` and in cron it is not set, though the manager may run.
  if (std::getenv("XDG_RUNTIME_DIR") == nullptr) {
    variables["XDG_RUNTIME_DIR"] = UserRuntimeFolder();
  }
  return RunProgram(command, variables, After(kPatience));
}

std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// What it said, on one line.
std::string Words(const ProgramEnd& end) {
  std::string words = end.err.empty() ? end.out : end.err;
  while (words.ends_with('\n')) words.pop_back();
  std::replace(words.begin(), words.end(), '\n', ' ');
  return words.empty() ? "code " + std::to_string(end.code) : words;
}

}  // namespace

std::string UserRuntimeFolder() {
  const char* folder = std::getenv("XDG_RUNTIME_DIR");
  if (folder != nullptr && folder[0] != '\0') return folder;
  return "/run/user/" + std::to_string(::geteuid());
}

Systemctl Systemctl::Connect() {
  Systemctl systemctl;
  auto end = Call({"is-system-running"});
  if (!end) {
    const bool none = end.error().code == ErrorCode::kNotFound;
    systemctl.missing_ = none ? "there is no systemctl here" : end.error().message;
    return systemctl;
  }
  const std::string state = FirstLine(end->out);
  constexpr std::array<std::string_view, 5> kRunning = {"initializing", "starting", "running",
                                                        "degraded", "maintenance"};
  if (std::find(kRunning.begin(), kRunning.end(), state) == kRunning.end()) {
    systemctl.missing_ =
        end->err.empty() ? "systemctl --user says: " + Words(*end) : FirstLine(end->err);
  }
  return systemctl;
}

Status Systemctl::Run(const std::vector<std::string>& arguments) const {
  auto end = Call(arguments);
  if (!end) return Fail(std::move(end.error()));
  if (end->code == 0) return {};
  std::string command = "systemctl --user";
  for (const std::string& word : arguments) command += " " + word;
  return Fail(
      ErrorCode::kIoError, "`" + command + "` failed: " + Words(*end),
      "`mk service status` says how it stands; `journalctl --user -u microkimid` tells more");
}

Result<UnitProperties> Systemctl::Show(const std::string& unit,
                                       const std::vector<std::string>& properties) const {
  std::string wanted;
  for (const std::string& name : properties) wanted += (wanted.empty() ? "" : ",") + name;
  auto end = Call({"show", unit, "--property=" + wanted});
  if (!end) return Fail(std::move(end.error()));
  if (end->code != 0) return Fail(ErrorCode::kIoError, "`systemctl --user show`: " + Words(*end));
  UnitProperties found;
  std::string_view rest = end->out;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    found[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return found;
}

}  // namespace mk::client
