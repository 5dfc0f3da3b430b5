// `mk session`

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "client/json_format.h"
#include "client/printable.h"
#include "client/progress.h"
#include "client/report.h"
#include "client/request_check.h"
#include "client/session_text.h"

namespace mk::client {
namespace {

// How many names an action takes, and which of the options.
struct Action {
  const char* name;
  const char* takes;  // for errors
  size_t least;
  size_t most;
};
constexpr size_t kAny = 1024;
constexpr milliseconds kPatience{600'000};
constexpr std::array kActions = {
    Action{"ls", "no name", 0, 0},
    Action{"new", "a name", 1, 1},
    Action{"info", "a session", 1, 1},
    Action{"show", "a session", 1, 1},
    Action{"fork", "a session and a name for the copy", 2, 2},
    Action{"undo", "a session and how many turns (default 1)", 1, 2},
    Action{"diff", "two sessions", 2, 2},
    Action{"save", "a session and a pack (default: of its name)", 1, 2},
    Action{"export", "a session and a file", 2, 2},
    Action{"restore", "a name and a pack", 2, 2},
    Action{"rename", "a session and its new name", 2, 2},
    Action{"rm", "one or more sessions", 1, kAny},
};

struct SessionSettings {
  AccessOptions access;
  std::string action = "ls";
  std::vector<std::string> names;
  protocol::ModelSelector model;
  std::string precision = protocol::kAutoPrecision;
  std::string system;
  std::optional<uint64_t> turns;  // fork
  bool all = false;               // undo
  bool force = false;             // save
  bool json = false;
  bool only_names = false;  // ls: for completions
};

void AddOptions(CommandLine& line, SessionSettings& settings) {
  CLI::App& app = line.app();
  std::vector<std::string> names;
  for (const Action& action : kActions) names.emplace_back(action.name);
  app.add_option("ACTION", settings.action,
                 "ls (default), new, info, show (what was said), fork, undo, diff, save, export, "
                 "restore, rename, rm")
      ->check(OneOf(names));
  app.add_option("SESSION", settings.names, "Session, and what else the action takes")
      ->expected(0, -1);
  line.AddModel(settings.model);
  line.AddPrecision(settings.precision, "new: arithmetic of its runs");
  app.add_option("--system", settings.system, "new: system message of a conversation")
      ->type_name("TEXT");
  line.AddNumber("--turns", settings.turns, "fork: copy only so many turns, from the first", 0,
                 1 << 20);
  app.add_flag("--all", settings.all, "undo: all turns");
  app.add_flag("--force", settings.force, "save, export: replace a pack that exists");
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  app.add_flag("--names", settings.only_names, "ls: only the names, one per line")
      ->excludes("--json");
  line.AddAccess(settings.access, true);
}

// The first thing that is wrong with the combination; empty when nothing is.
std::string Problem(const CLI::App& app, const SessionSettings& settings, const Action& action) {
  const size_t count = settings.names.size();
  if (count < action.least || count > action.most) {
    return "mk session " + settings.action + " takes " + action.takes + ", not " +
           std::to_string(count) + (count == 1 ? " name" : " names");
  }
  struct Option {
    const char* name;
    std::vector<const char*> actions;
  };
  const std::array options = {Option{"--model", {"new", "restore"}},
                              Option{"--vocab", {"new", "restore"}},
                              Option{"--tokenizer-file", {"new", "restore"}},
                              Option{"--precision", {"new"}},
                              Option{"--system", {"new"}},
                              Option{"--turns", {"fork"}},
                              Option{"--all", {"undo"}},
                              Option{"--force", {"save", "export"}},
                              Option{"--names", {"ls"}}};
  for (const Option& option : options) {
    const bool fits = std::any_of(option.actions.begin(), option.actions.end(),
                                  [&](const char* name) { return settings.action == name; });
    if (app.count(option.name) > 0 && !fits) {
      return std::string(option.name) + " does not go with mk session " + settings.action;
    }
  }
  if (settings.all && count > 1) return "--all excludes a number of turns";
  return {};
}

// "2"; nothing for what is no number of turns.
std::optional<uint64_t> Turns(const std::string& text) {
  uint64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || rest != end || count == 0) return std::nullopt;
  return count;
}

protocol::Result<protocol::Args> ArgsOf(const SessionSettings& settings) {
  const auto& names = settings.names;
  const std::string& action = settings.action;
  if (action == "ls") return protocol::SessionsArgs{};
  if (action == "new") {
    protocol::SessionNewArgs args{names[0], settings.model, settings.precision, {}};
    if (!settings.system.empty()) args.system = settings.system;
    return args;
  }
  if (action == "fork") return protocol::SessionForkArgs{names[0], names[1], settings.turns};
  if (action == "undo") {
    if (settings.all) return protocol::SessionUndoArgs{names[0], {}};
    const auto turns = names.size() > 1 ? Turns(names[1]) : uint64_t{1};
    if (turns) return protocol::SessionUndoArgs{names[0], turns};
    return protocol::Fail(UsageError("\"" + Printable(names[1]) + "\" is no number of turns",
                                     "for example: mk session undo " + names[0] + " 2"));
  }
  if (action == "diff") return protocol::SessionDiffArgs{names[0], names[1]};
  if (action == "save") {
    return protocol::SessionSaveArgs{names[0], names.size() > 1 ? PackArgument(names[1]) : "",
                                     settings.force};
  }
  if (action == "export") {
    return protocol::SessionSaveArgs{names[0], AbsolutePath(names[1]), settings.force};
  }
  if (action == "restore") {
    return protocol::SessionRestoreArgs{names[0], PackArgument(names[1]), settings.model};
  }
  if (action == "rename") return protocol::SessionRenameArgs{names[0], names[1]};
  if (action == "rm") return protocol::SessionRemoveArgs{names};
  return protocol::SessionShowArgs{names[0]};
}

std::string RemovedText(uint64_t removed) {
  return "removed " + std::to_string(removed) + (removed == 1 ? " session\n" : " sessions\n");
}

// What is told of the answer.
std::string TextOf(const SessionSettings& settings, const protocol::Body& body) {
  if (const auto* list = std::get_if<protocol::SessionsDone>(&body)) {
    return settings.only_names ? SessionNamesText(*list) : SessionsText(*list);
  }
  if (const auto* show = std::get_if<protocol::SessionShowDone>(&body)) {
    return settings.action == "show" ? SessionSaidText(*show) : SessionInfoText(*show);
  }
  if (const auto* made = std::get_if<protocol::SessionNewDone>(&body)) {
    return SessionLine(made->session);
  }
  if (const auto* fork = std::get_if<protocol::SessionForkDone>(&body)) {
    return SessionLine(fork->session);
  }
  if (const auto* undo = std::get_if<protocol::SessionUndoDone>(&body)) {
    return SessionLine(undo->session);
  }
  if (const auto* renamed = std::get_if<protocol::SessionRenameDone>(&body)) {
    return SessionLine(renamed->session);
  }
  if (const auto* removed = std::get_if<protocol::SessionRemoveDone>(&body)) {
    return RemovedText(removed->removed);
  }
  if (const auto* saved = std::get_if<protocol::SessionSaveDone>(&body)) {
    return Printable(saved->path) + ": " + std::to_string(saved->tokens) + " tokens, " +
           BytesText(saved->file_bytes) + "\n";
  }
  if (const auto* restored = std::get_if<protocol::SessionRestoreDone>(&body)) {
    return SessionLine(restored->session);
  }
  const auto* diff = std::get_if<protocol::SessionDiffDone>(&body);
  return diff == nullptr ? "" : SessionDiffText(settings.names[0], settings.names[1], *diff);
}

// The answers of all actions are objects with a schema; other bodies are none.
Json JsonOf(const protocol::Body& body) {
  return std::visit(
      [](const auto& done) -> Json {
        if constexpr (protocol::HasSchema<std::decay_t<decltype(done)>>) return ToJson(done);
        return Json::object();
      },
      body);
}

}  // namespace

int SessionCommand(const Command& command, int argc, char** argv) {
  SessionSettings settings;
  CommandLine line(command);
  AddOptions(line, settings);
  if (auto code = line.Parse(argc, argv)) return *code;
  const auto* action = std::find_if(kActions.begin(), kActions.end(), [&](const Action& each) {
    return settings.action == each.name;
  });
  if (std::string problem = Problem(line.app(), settings, *action); !problem.empty()) {
    return ReportUsage(problem, "`mk session --help` lists the actions, with examples");
  }
  MakeAbsolute(settings.model);
  auto args = ArgsOf(settings);
  if (!args) return ReportError(args.error(), settings.json);
  if (auto good = CheckRequest(*args); !good) return ReportError(good.error(), settings.json);
  // Completions never start a daemon.
  if (settings.only_names) settings.access.autostart = false;
  auto session = OpenSession(settings.access);
  if (!session) return ReportError(session.error(), settings.json);
  // States may be large, and disks slow.
  auto body = Ask(*session, std::move(*args), After(kPatience));
  if (!body) return ReportError(body.error(), settings.json);
  Output output(STDOUT_FILENO);
  output.Write(settings.json ? JsonLine(JsonOf(*body)) : TextOf(settings, *body));
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
