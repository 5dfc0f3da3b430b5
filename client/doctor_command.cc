// `mk doctor`: what is wrong, and how to mend it. Never starts a daemon.

#include <unistd.h>

#include <algorithm>

#include "client/commands.h"
#include "client/doctor.h"
#include "client/json_format.h"
#include "client/printable.h"
#include "client/report.h"
#include "client/table.h"

namespace mk::client {
namespace {

constexpr const char* kNames[] = {"ok", "warn", "fail"};  // in the order of Health
constexpr size_t kCheckWidth = 14;

const char* NameOf(Health health) {
  return kNames[static_cast<size_t>(health)];
}

std::string Line(const Finding& finding, const Painter& paint) {
  const Color color = finding.health == Health::kOk
                          ? Color::kGreen
                          : (finding.health == Health::kWarn ? Color::kYellow : Color::kRed);
  std::string check = Printable(finding.check);
  check.append(check.size() < kCheckWidth ? kCheckWidth - check.size() : 0, ' ');
  std::string word = NameOf(finding.health);
  const std::string gap(6 - word.size(), ' ');
  std::string text = paint(color, word) + gap + check + " " + Printable(finding.message) + "\n";
  if (!finding.remedy.empty()) text += "      to mend it: " + Printable(finding.remedy) + "\n";
  return text;
}

std::string Summary(Health worst) {
  if (worst == Health::kOk) return "all is well\n";
  return worst == Health::kWarn ? "it works, but not as well as it could\n"
                                : "something has to be mended\n";
}

Json FindingsJson(const Findings& findings, Health worst) {
  Json checks = Json::array();
  for (const Finding& finding : findings) {
    checks.push_back({{"check", finding.check},
                      {"health", NameOf(finding.health)},
                      {"message", finding.message},
                      {"remedy", finding.remedy}});
  }
  return {{"schema", 1}, {"health", NameOf(worst)}, {"checks", std::move(checks)}};
}

}  // namespace

int DoctorCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  bool json = false;
  CommandLine line(command);
  line.app().add_flag("--json", json, "One JSON object instead of text");
  line.AddAccess(access, false);
  if (auto code = line.Parse(argc, argv)) return *code;
  Findings findings;
  CheckDaemon(access, findings);
  CheckConfig(findings);
  CheckFolders(findings);
  CheckMachine(findings);
  Health worst = Health::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.health);
  Output output(STDOUT_FILENO);
  if (json) {
    output.Write(JsonLine(FindingsJson(findings, worst)));
  } else {
    const Painter paint(IsFancyTerminal(STDOUT_FILENO));
    for (const Finding& finding : findings) output.Write(Line(finding, paint));
    output.Write(Summary(worst));
  }
  constexpr int kCodes[] = {protocol::kExitDone, protocol::kExitDegraded, protocol::kExitFailed};
  return FinishOutput(output, kCodes[static_cast<size_t>(worst)]);
}

}  // namespace mk::client
