// `mk service`

#include <unistd.h>

#include "client/commands.h"
#include "client/printable.h"
#include "client/report.h"
#include "client/service.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

struct ServiceOptions {
  std::string action;
  std::string socket;
  bool force = false;
  bool no_start = false;
  bool json = false;
};

// A unit that somebody else wrote or changed is not ours to replace or remove.
Status MayReplace(const UnitFile& file, bool force, const char* how) {
  if (!file.exists || force || file.author == UnitAuthor::kMk) return {};
  const bool edited = file.author == UnitAuthor::kEdited;
  return Fail(ErrorCode::kBusy,
              file.path + (edited ? " was changed since mk wrote it" : " was not written by mk"),
              how);
}

// Writes one unit. True: it is not as it was.
Result<bool> PutUnit(const UnitFile& file, const std::string& text, Output& output) {
  if (file.exists && file.text == text) {
    output.Write("unchanged " + Printable(file.path) + "\n");
    return false;
  }
  if (file.exists && file.author != UnitAuthor::kMk) {
    Result<std::string> aside = SetAside(file);
    if (!aside) return Fail(std::move(aside.error()));
    output.Write("kept the unit that was there as " + Printable(*aside) + "\n");
  }
  if (Status written = WriteUnitFile(file, text); !written) return Fail(written.error());
  output.Write("wrote " + Printable(file.path) + "\n");
  return true;
}

bool IsActive(const Systemctl& systemctl, const char* unit) {
  auto shown = systemctl.Show(unit, {"ActiveState"});
  return shown && (*shown)["ActiveState"] == "active";
}

// The manager reads the units, enables the socket and, unless that is not wanted, starts it.
Status Enable(const Systemctl& systemctl, bool start, bool socket_changed, Output& output) {
  if (Status done = systemctl.Run({"daemon-reload"}); !done) return done;
  if (Status done = systemctl.Run({"enable", kSocketUnit}); !done) return done;
  if (!start) {
    output.Write(std::string("enabled ") + kSocketUnit + "; it listens from the next login on\n");
    return {};
  }
  if (socket_changed && IsActive(systemctl, kSocketUnit)) {
    // It may listen elsewhere now; a socket does not start while its service runs.
    if (Status done = systemctl.Run({"stop", kServiceUnit, kSocketUnit}); !done) return done;
  }
  if (Status done = systemctl.Run({"start", kSocketUnit}); !done) return done;
  output.Write(std::string("enabled and started ") + kSocketUnit +
               "; the first call of mk starts the daemon\n");
  return {};
}

// Without a manager: what a login will find. The exit code.
int EnableLater(const ServicePlace& place, const Systemctl& systemctl, Output& output) {
  if (Status linked = Link(place.folder); !linked) return ReportError(linked.error());
  output.Write(std::string("enabled ") + kSocketUnit + " for the next login\n");
  const int code = FinishOutput(output, protocol::kExitDegraded);
  if (code != protocol::kExitDegraded) return code;
  ReportError({ErrorCode::kUnreachable,
               "installed, but not started: no user manager runs: " + systemctl.missing(),
               "when one runs: systemctl --user daemon-reload && systemctl --user start " +
                   std::string(kSocketUnit) +
                   " (`loginctl enable-linger` keeps one running); until then mk starts the "
                   "daemon itself",
               {}});
  return protocol::kExitDegraded;
}

int Install(const ServiceOptions& options) {
  Result<ServicePlace> place = FindService();
  if (!place) return ReportError(place.error());
  Result<UnitTexts> wanted = WantedUnits(options.socket);
  if (!wanted) return ReportError(wanted.error());
  for (const UnitFile* file : {&place->socket, &place->service}) {
    const char* how =
        "put your changes into a drop-in (`systemctl --user edit`), then --force "
        "replaces it and keeps the old one beside it";
    if (Status may = MayReplace(*file, options.force, how); !may) return ReportError(may.error());
  }
  Output output(STDOUT_FILENO);
  const auto failed = [&output](const protocol::Error& error) {
    FinishOutput(output, protocol::kExitFailed);
    return ReportError(error);
  };
  Result<bool> service = PutUnit(place->service, wanted->service, output);
  if (!service) return failed(service.error());
  Result<bool> socket = PutUnit(place->socket, wanted->socket, output);
  if (!socket) return failed(socket.error());
  const Systemctl systemctl = Systemctl::Connect();
  if (!systemctl.running()) return EnableLater(*place, systemctl, output);
  if (Status done = Enable(systemctl, !options.no_start, *socket, output); !done) {
    return failed(done.error());
  }
  if (*service && IsActive(systemctl, kServiceUnit)) {
    output.Write("the daemon that runs was started before; `mk restart` starts it anew\n");
  }
  return FinishOutput(output, protocol::kExitDone);
}

// Ends what runs. Errors: what systemctl said.
Status StopUnits(const Systemctl& systemctl, const ServicePlace& place, Output& output) {
  if (!systemctl.running()) return {};
  if (place.socket.exists) {
    if (Status done = systemctl.Run({"disable", "--now", kSocketUnit}); !done) return done;
    output.Write(std::string("stopped and disabled ") + kSocketUnit + "\n");
  }
  if (place.service.exists) {
    if (Status done = systemctl.Run({"stop", kServiceUnit}); !done) return done;
    output.Write(std::string("stopped ") + kServiceUnit + "\n");
  }
  return {};
}

Status RemoveUnits(const ServicePlace& place, Output& output) {
  if (IsLinked(place.folder)) {
    if (Status done = Unlink(place.folder); !done) return done;
  }
  for (const UnitFile* file : {&place.socket, &place.service}) {
    if (!file->exists) continue;
    if (Status done = RemoveFile(file->path); !done) return done;
    output.Write("removed " + Printable(file->path) + "\n");
  }
  return {};
}

int Uninstall(const ServiceOptions& options) {
  Result<ServicePlace> place = FindService();
  if (!place) return ReportError(place.error());
  Output output(STDOUT_FILENO);
  if (!place->socket.exists && !place->service.exists) {
    output.Write("no service is installed\n");
    return FinishOutput(output, protocol::kExitDone);
  }
  for (const UnitFile* file : {&place->socket, &place->service}) {
    const char* how = "--force removes it";
    if (Status may = MayReplace(*file, options.force, how); !may) return ReportError(may.error());
  }
  const Systemctl systemctl = Systemctl::Connect();
  Status done = StopUnits(systemctl, *place, output);
  if (done) done = RemoveUnits(*place, output);
  if (done && systemctl.running()) {
    done = systemctl.Run({"daemon-reload"});
    // A failure of units that are gone would be shown for ever. There need not be one.
    (void)systemctl.Run({"reset-failed", kSocketUnit, kServiceUnit});
  }
  const int code = FinishOutput(output, protocol::kExitDone);
  return done ? code : ReportError(done.error());
}

std::optional<int> Parse(const Command& command, int argc, char** argv, ServiceOptions& options) {
  AccessOptions access;
  CommandLine line(command);
  line.app()
      .add_option("ACTION", options.action, "install, uninstall or status")
      ->required()
      ->check(OneOf({"install", "uninstall", "status"}));
  line.app().add_flag("--force", options.force,
                      "Also replace or remove units that mk did not write or that were changed");
  line.app().add_flag("--no-start", options.no_start,
                      "install: enable the socket from the next login on, start nothing now");
  line.app().add_flag("--json", options.json, "status: one JSON object instead of text");
  line.AddAccess(access, false);
  if (auto code = line.Parse(argc, argv)) return code;
  options.socket = access.socket;
  const auto only = [&](bool given, const char* name, bool fits) -> std::optional<int> {
    if (!given || fits) return std::nullopt;
    return ReportUsage(std::string(name) + " means nothing to `mk service " + options.action + "`",
                       "`mk service --help` says what it is for");
  };
  const bool status = options.action == "status";
  if (auto code = only(options.json, "--json", status)) return code;
  if (auto code = only(options.force, "--force", !status)) return code;
  return only(options.no_start, "--no-start", options.action == "install");
}

}  // namespace

int ServiceCommand(const Command& command, int argc, char** argv) {
  ServiceOptions options;
  if (auto code = Parse(command, argc, argv, options)) return *code;
  if (options.action == "install") return Install(options);
  if (options.action == "uninstall") return Uninstall(options);
  return ShowService(options.socket, options.json);
}

}  // namespace mk::client
