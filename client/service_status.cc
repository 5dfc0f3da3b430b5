// `mk service status`: the units, what systemd says of them, and whether both are what install
// would make.

#include <sys/stat.h>
#include <unistd.h>

#include "client/daemon_program.h"
#include "client/json_format.h"
#include "client/printable.h"
#include "client/report.h"
#include "client/service.h"
#include "protocol/socket_path.h"

namespace mk::client {
namespace {

using protocol::Result;

struct ServiceView {
  ServicePlace place;
  std::string manager_missing;  // why no user manager answers; "": one does
  bool linked = false;          // the link that enables the socket is there
  UnitProperties socket;        // what the manager says; empty without one
  UnitProperties service;
  std::string program;                // of the unit that counts
  std::string listens;                // path of the socket unit that counts
  std::string mk_program;             // beside this mk
  std::string mk_socket;              // where this mk looks
  bool as_wanted = false;             // both units are what install would write now
  std::vector<std::string> problems;  // each says how to mend it
};

std::string Property(const UnitProperties& properties, const std::string& name) {
  const auto found = properties.find(name);
  return found == properties.end() ? std::string() : found->second;
}

bool SameFile(const std::string& a, const std::string& b) {
  struct stat first = {};
  struct stat second = {};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// The text of the unit that the manager uses: the user's own, or one that a package installed.
std::string TextInForce(const UnitFile& own, const UnitProperties& properties) {
  if (own.exists) return own.text;
  const std::string path = Property(properties, "FragmentPath");
  if (path.empty()) return {};
  Result<UnitFile> file = ReadUnitFile(path);
  return file ? file->text : std::string();
}

bool Installed(const ServiceView& view) {
  return (view.place.socket.exists && view.place.service.exists) ||
         (Property(view.socket, "LoadState") == "loaded" &&
          Property(view.service, "LoadState") == "loaded");
}

bool Enabled(const ServiceView& view) {
  const std::string state = Property(view.socket, "UnitFileState");
  return state.empty() ? view.linked : state.starts_with("enabled");
}

std::string SocketState(const ServiceView& view) {
  const std::string state = Property(view.socket, "ActiveState");
  return state == "active" ? Property(view.socket, "SubState") : state;
}

// What the service's last end was, when it was a failure.
std::string LastFailure(const ServiceView& view) {
  std::string text;
  const std::string result = Property(view.service, "Result");
  if (!result.empty() && result != "success") {
    text = result;
    const std::string status = Property(view.service, "ExecMainStatus");
    if (!status.empty() && status != "0") text += ", status " + status;
    const std::string when = Property(view.service, "ExecMainExitTimestamp");
    if (!when.empty()) text += ", " + when;
  }
  const std::string socket = Property(view.socket, "Result");
  if (!socket.empty() && socket != "success") {
    text += (text.empty() ? "" : "; ") + ("the socket: " + socket);
  }
  return text;
}

void FindProblems(ServiceView& view) {
  const auto add = [&view](const std::string& what) { view.problems.push_back(what); };
  for (const UnitFile* file : {&view.place.socket, &view.place.service}) {
    if (!file->exists || file->author == UnitAuthor::kMk) continue;
    add(file->path +
        (file->author == UnitAuthor::kEdited ? " was changed since mk wrote it"
                                             : " was not written by mk") +
        "; `mk service install --force` writes it anew and keeps a copy");
  }
  if (::access(view.program.c_str(), X_OK) != 0) {
    add("the program of the unit cannot be run: " + view.program +
        "; `mk service install` names the one beside this mk");
  } else if (!SameFile(view.program, view.mk_program)) {
    add("the unit starts another program than the one beside this mk; "
        "`mk service install` changes that");
  }
  if (view.listens != view.mk_socket) {
    add("this mk looks for the daemon at " + view.mk_socket +
        ", the unit listens elsewhere; `mk service install` changes that");
  }
  if (!Enabled(view)) add("the socket is not enabled; `mk service install` enables it");
  if (!view.manager_missing.empty()) {
    add("no user manager runs (" + view.manager_missing +
        "); log in, or `loginctl enable-linger`; until then mk starts the daemon itself");
    return;
  }
  if (Property(view.socket, "ActiveState") != "active") {
    add("the socket does not listen; `mk service install` starts it");
  }
  if (Property(view.service, "NeedDaemonReload") == "yes" ||
      Property(view.socket, "NeedDaemonReload") == "yes") {
    add("the manager has not read the units as they are; `mk service install` makes it");
  }
  if (const std::string failure = LastFailure(view); !failure.empty()) {
    add("it failed: " + failure + "; `mk logs` says where its log is");
  }
}

Result<ServiceView> LookAtService(const std::string& socket) {
  ServiceView view;
  Result<ServicePlace> place = FindService();
  if (!place) return protocol::Fail(std::move(place.error()));
  view.place = std::move(*place);
  Result<protocol::SocketPaths> paths = protocol::FindSocketPaths(socket);
  if (!paths) return protocol::Fail(std::move(paths.error()));
  view.mk_socket = paths->socket;
  view.mk_program = DaemonBesideMk();
  view.linked = IsLinked(view.place.folder);
  const Systemctl systemctl = Systemctl::Connect();
  view.manager_missing = systemctl.missing();
  if (systemctl.running()) {
    auto said =
        systemctl.Show(kSocketUnit, {"LoadState", "UnitFileState", "ActiveState", "SubState",
                                     "Result", "NeedDaemonReload", "FragmentPath"});
    if (!said) return protocol::Fail(std::move(said.error()));
    view.socket = std::move(*said);
    said =
        systemctl.Show(kServiceUnit, {"LoadState", "ActiveState", "SubState", "Result", "MainPID",
                                      "NRestarts", "StatusText", "ExecMainStatus",
                                      "ExecMainExitTimestamp", "NeedDaemonReload", "FragmentPath"});
    if (!said) return protocol::Fail(std::move(said.error()));
    view.service = std::move(*said);
  }
  view.program = ProgramOf(TextInForce(view.place.service, view.service));
  view.listens = ListenPathOf(TextInForce(view.place.socket, view.socket), UserRuntimeFolder());
  if (const Result<UnitTexts> wanted = WantedUnits(socket)) {
    view.as_wanted =
        view.place.socket.text == wanted->socket && view.place.service.text == wanted->service;
  }
  if (Installed(view)) FindProblems(view);
  return view;
}

std::string ServiceText(const ServiceView& view) {
  if (!Installed(view)) return "no service is installed; `mk service install` does it\n";
  const std::string state = SocketState(view);
  std::string text = std::string("socket    ") + (Enabled(view) ? "enabled" : "not enabled") +
                     (state.empty() ? "" : ", " + Printable(state)) + ", " +
                     Printable(view.listens) + "\n";
  text += "service   ";
  const std::string pid = Property(view.service, "MainPID");
  if (!pid.empty() && pid != "0") {
    text += "runs, pid " + Printable(pid);
    const std::string doing = Property(view.service, "StatusText");
    if (!doing.empty()) text += ": " + Printable(doing);
  } else {
    text += "does not run; the first call of mk starts it";
  }
  const std::string restarts = Property(view.service, "NRestarts");
  if (!restarts.empty() && restarts != "0")
    text += "; started anew " + Printable(restarts) + " times";
  text += "\nprogram   " + Printable(view.program) +
          (SameFile(view.program, view.mk_program) ? ", the one beside this mk" : "") + "\n";
  text += "units     " + Printable(view.place.folder) +
          (view.as_wanted ? ", as `mk service install` writes them"
                          : ", not as `mk service install` would write them now") +
          "\n";
  for (const std::string& problem : view.problems) text += "! " + Printable(problem) + "\n";
  return text;
}

Json UnitJson(const UnitFile& file, const UnitProperties& properties) {
  const auto author = [&]() -> Json {
    if (!file.exists) return nullptr;
    if (file.author == UnitAuthor::kMk) return "mk";
    return file.author == UnitAuthor::kEdited ? "mk, edited" : "other";
  };
  return {{"file", file.path},
          {"exists", file.exists},
          {"written_by", author()},
          {"fragment", Property(properties, "FragmentPath")},
          {"load_state", Property(properties, "LoadState")},
          {"active_state", Property(properties, "ActiveState")},
          {"sub_state", Property(properties, "SubState")},
          {"result", Property(properties, "Result")}};
}

uint64_t Number(const std::string& digits) {
  return digits.empty() ? 0 : std::strtoull(digits.c_str(), nullptr, 10);
}

Json ServiceJson(const ServiceView& view) {
  Json socket = UnitJson(view.place.socket, view.socket);
  socket["enabled"] = Enabled(view);
  socket["listens"] = view.listens;
  Json service = UnitJson(view.place.service, view.service);
  service["pid"] = Number(Property(view.service, "MainPID"));
  service["restarts"] = Number(Property(view.service, "NRestarts"));
  service["status"] = Property(view.service, "StatusText");
  service["program"] = view.program;
  service["program_is_beside_mk"] = SameFile(view.program, view.mk_program);
  const std::string failure = LastFailure(view);
  return {{"installed", Installed(view)},
          {"as_install_writes", view.as_wanted},
          {"manager", view.manager_missing.empty()},
          {"socket", std::move(socket)},
          {"service", std::move(service)},
          {"last_failure", failure.empty() ? Json(nullptr) : Json(failure)},
          {"problems", view.problems}};
}

}  // namespace

int ShowService(const std::string& socket, bool json) {
  Result<ServiceView> view = LookAtService(socket);
  if (!view) return ReportError(view.error());
  Output output(STDOUT_FILENO);
  output.Write(json ? JsonLine(ServiceJson(*view)) : ServiceText(*view));
  if (!Installed(*view)) return FinishOutput(output, protocol::kExitNotFound);
  return FinishOutput(output,
                      view->problems.empty() ? protocol::kExitDone : protocol::kExitDegraded);
}

}  // namespace mk::client
