// `mk pack`: files alone, without a model and without a daemon that runs. The formats are the
// engine's, which mk does not link: the daemon's program does the work, once, in our place.

#include "client/pack_command.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "client/daemon_program.h"
#include "client/report.h"

namespace mk::client {
namespace {

// How many packs an action takes, and which of the options.
struct Action {
  const char* name;
  size_t least;
  size_t most;
  bool makes;  // --out and --force
};
constexpr size_t kAny = ~size_t{0};
constexpr std::array kActions = {
    Action{"list", 0, 0, false},  Action{"info", 1, kAny, false}, Action{"verify", 1, kAny, false},
    Action{"diff", 2, 2, false},  Action{"decay", 1, 1, true},    Action{"merge", 2, kAny, true},
    Action{"rm", 1, kAny, false}, Action{"export", 1, 1, true},   Action{"import", 1, 1, true},
};

struct PackSettings {
  std::string action;
  std::vector<std::string> packs;
  std::string out;
  double half_life = 0;
  double units = 1;
  double alpha = 0;
  uint64_t shuffle = 0;
  bool average = false;
  bool force = false;
  bool json = false;
};

void AddOptions(CommandLine& line, PackSettings& settings) {
  CLI::App& app = line.app();
  std::vector<std::string> names;
  for (const Action& action : kActions) names.emplace_back(action.name);
  app.add_option("ACTION", settings.action,
                 "list, info, verify, diff, decay, merge, rm, export, import")
      ->required()
      ->check(OneOf(names));
  app.add_option("PACK", settings.packs, "Path (with a '/' or ending in .mkmem), or name")
      ->expected(0, -1);
  app.add_option("-o,--out", settings.out, "Pack to make: path or name")->type_name("PACK");
  line.AddReal("--half-life", settings.half_life, "decay: age at which half is left",
               {0, 1e12, true});
  line.AddReal("--units", settings.units, "decay: age, in the unit of the half-life (default 1)",
               {0, 1e12, false});
  line.AddReal("--alpha", settings.alpha, "merge: blend two packs, this much of the first",
               {0, 1, false});
  app.add_flag("--average", settings.average, "merge: the average instead of the sum");
  line.AddNumber("--shuffle", settings.shuffle,
                 "merge: shuffle the state of this input first, as a control", 2, 1 << 20);
  app.add_flag("--force", settings.force, "Replace a pack that exists");
  app.add_flag("--json", settings.json, "One JSON object instead of text");
}

// The first thing that is wrong with the combination; empty when nothing is.
std::string Problem(const CLI::App& app, const PackSettings& settings, const Action& action) {
  const size_t count = settings.packs.size();
  if (count < action.least || count > action.most) {
    const std::string least = std::to_string(action.least);
    const std::string more = action.most == kAny ? " or more" : "";
    return "mk pack " + settings.action + " takes " + least + more +
           (least == "1" && more.empty() ? " pack" : " packs") + ", not " + std::to_string(count);
  }
  const auto only_for = [&](const char* option, const char* name) {
    return app.count(option) > 0 && settings.action != name
               ? std::string(option) + " goes with mk pack " + name + " only"
               : std::string();
  };
  for (const auto& [option, name] : {std::pair("--half-life", "decay"),
                                     {"--units", "decay"},
                                     {"--alpha", "merge"},
                                     {"--average", "merge"},
                                     {"--shuffle", "merge"}}) {
    if (std::string problem = only_for(option, name); !problem.empty()) return problem;
  }
  if (!action.makes && (app.count("--out") > 0 || settings.force)) {
    return "mk pack " + settings.action + " makes no pack: no --out and no --force";
  }
  if (action.makes && settings.out.empty() && settings.action != "import") {
    return "mk pack " + settings.action + " needs --out";
  }
  if (settings.action == "decay" && app.count("--half-life") == 0) {
    return "mk pack decay needs --half-life";
  }
  if (app.count("--alpha") > 0 && (count != 2 || settings.average || settings.shuffle > 0)) {
    return "--alpha blends two packs, without --average and --shuffle";
  }
  return {};
}

std::string Decimal(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// What the tool is called with: the same, without defaults.
std::vector<std::string> Arguments(const CLI::App& app, const PackSettings& settings) {
  std::vector<std::string> arguments = {"pack", settings.action};
  const auto add = [&](const char* option, const std::string& value) {
    if (app.count(option) > 0) arguments.insert(arguments.end(), {option, value});
  };
  add("--out", settings.out);
  add("--half-life", Decimal(settings.half_life));
  add("--units", Decimal(settings.units));
  add("--alpha", Decimal(settings.alpha));
  add("--shuffle", std::to_string(settings.shuffle));
  if (settings.average) arguments.emplace_back("--average");
  if (settings.force) arguments.emplace_back("--force");
  if (settings.json) arguments.emplace_back("--json");
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), settings.packs.begin(), settings.packs.end());
  return arguments;
}

}  // namespace

int PackCommand(const Command& command, int argc, char** argv) {
  PackSettings settings;
  CommandLine line(command);
  AddOptions(line, settings);
  if (auto code = line.Parse(argc, argv)) return *code;
  const auto* action = std::find_if(kActions.begin(), kActions.end(), [&](const Action& each) {
    return settings.action == each.name;
  });
  if (std::string problem = Problem(line.app(), settings, *action); !problem.empty()) {
    return ReportUsage(problem, "`mk pack --help` lists the options, with examples");
  }
  return BecomeDaemonTool(Arguments(line.app(), settings));
}

}  // namespace mk::client
