// `mk config`: the settings that count, and changing one of them in the file.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "cli/folders.h"
#include "client/atomic_write.h"
#include "client/commands.h"
#include "client/config_edit.h"
#include "client/config_view.h"
#include "client/printable.h"
#include "client/report.h"
#include "client/unique_fd.h"
#include "protocol/home.h"
#include "protocol/utf8.h"

namespace mk::client {
namespace {

using cli::ConfigKind;
using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;

struct ConfigOptions {
  AccessOptions access;
  std::string action;
  std::string key;
  std::optional<std::string> value;
  std::string file;
  bool reload = false;
  bool json = false;
};

int Print(const std::string& text, int code = protocol::kExitDone) {
  Output output(STDOUT_FILENO);
  output.Write(text);
  return FinishOutput(output, code);
}

// A value such as "-1" looks like an option: it goes behind "--".
std::vector<char*> ValuesLast(int argc, char** argv) {
  static char dashes[] = "--";
  std::vector<char*> words;
  std::vector<char*> values;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return {argv, argv + argc};
    const bool number =
        word.size() > 1 && word[0] == '-' && std::isdigit(static_cast<unsigned char>(word[1])) != 0;
    (number ? values : words).push_back(argv[i]);
  }
  if (!values.empty()) words.push_back(dashes);
  words.insert(words.end(), values.begin(), values.end());
  return words;
}

// ---------------------------------------------------------------- what is wrong

void Tell(const ConfigFileText& file, const cli::ConfigProblem& problem) {
  std::string text =
      std::string(problem.fatal ? "mk: " : "mk: warning: ") + ProblemLine(file, problem) + "\n";
  if (!problem.hint.empty()) text += "  hint: " + Printable(problem.hint) + "\n";
  std::fputs(text.c_str(), stderr);
}

// Says what is wrong with the file; the exit code.
int TellProblems(const ConfigFileText& file) {
  for (const cli::ConfigProblem& problem : file.read.problems) Tell(file, problem);
  if (file.fatal()) return protocol::kExitFailed;
  return file.read.problems.empty() ? protocol::kExitDone : protocol::kExitDegraded;
}

int Check(const ConfigOptions& options, const ConfigFileText& file) {
  const bool ok = file.read.problems.empty();
  const int code =
      ok ? protocol::kExitDone : (file.fatal() ? protocol::kExitFailed : protocol::kExitDegraded);
  if (options.json) {
    return Print(JsonLine({{"schema", 1},
                           {"file", file.path},
                           {"exists", file.exists},
                           {"ok", ok},
                           {"problems", ProblemsJson(file)}}),
                 code);
  }
  TellProblems(file);
  if (!ok) return code;
  return Print(Printable(file.path) +
               (file.exists ? " is fine\n" : ": there is none, that is fine\n"));
}

// ---------------------------------------------------------------- looking

int Show(const ConfigOptions& options, const ConfigFileText& file) {
  const auto daemon = FindRunningDaemon(options.access);
  const int code = file.fatal() ? protocol::kExitFailed : protocol::kExitDone;
  if (options.json) return Print(JsonLine(SettingsJson(file, daemon)), code);
  TellProblems(file);
  return Print(SettingsText(file, daemon), code);
}

// One path of a table.
int GetAlias(const ConfigOptions& options, const ConfigTarget& target,
             const cli::ConfigTable& table) {
  const auto found = table.find(target.alias);
  if (found == table.end()) {
    return ReportError({ErrorCode::kNotFound,
                        "the config file has no " + target.name(),
                        "`mk config set " + target.name() + " PATH` makes it",
                        {}});
  }
  return Print(options.json ? JsonLine(found->second) : found->second + "\n");
}

int Get(const ConfigOptions& options, const ConfigFileText& file, const ConfigTarget& target) {
  if (file.fatal()) return TellProblems(file);  // the daemon does not use it either
  const cli::ConfigValue value = EffectiveValue(file.read, *target.key);
  const auto* table = std::get_if<cli::ConfigTable>(&value);
  if (table != nullptr && !target.alias.empty()) return GetAlias(options, target, *table);
  if (options.json) return Print(JsonLine(ValueJson(*target.key, value)));
  if (table == nullptr) return Print(cli::ShowConfigValue(*target.key, value) + "\n");
  std::string text;
  for (const auto& [name, path] : *table) text += name + " = " + path + "\n";
  return Print(text);
}

// ---------------------------------------------------------------- changing

// As it is written in the file.
Result<std::string> WrittenValue(const ConfigTarget& target, const std::string& value) {
  if (protocol::FindInvalidUtf8(value) != std::string::npos) {
    return Fail(UsageError("the value is not UTF-8", "the config file holds UTF-8 only"));
  }
  if (!target.alias.empty()) return cli::TomlString(ModelArgument(value));
  if (target.key->kind == ConfigKind::kTable) {
    const std::string name = target.key->name;
    return Fail(UsageError(name + " is a table",
                           "set one name of it: mk config set " + name + ".NAME PATH"));
  }
  auto parsed = cli::ParseConfigValue(*target.key, value);
  if (parsed) return cli::WriteConfigValue(*target.key, *parsed);
  return Fail(UsageError(parsed.error().message, "expected: " + parsed.error().wanted));
}

// Two calls that change the file at once must not undo each other.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_) ::flock(fd_.get(), LOCK_EX);
  }

 private:
  const UniqueFd fd_;
};

// What the daemon that runs has to do with a change.
int TellDaemon(const ConfigOptions& options, const cli::ConfigKey& key, Output& output) {
  const auto daemon = FindRunningDaemon(options.access);
  if (!daemon) {
    output.Write("no daemon runs; the next one obeys\n");
    return protocol::kExitDone;
  }
  if (!key.live) {
    output.Write(daemon->name() + ", obeys when it is started again: mk restart\n");
    return protocol::kExitDone;
  }
  if (!options.reload) {
    output.Write(daemon->name() + ", has not read it yet: mk config reload\n");
    return protocol::kExitDone;
  }
  if (auto told = ReloadDaemon(*daemon); !told) return ReportError(told.error());
  output.Write(daemon->name() + ", was told to read it\n");
  return protocol::kExitDone;
}

// `written`: nothing to take the setting out.
int Change(const ConfigOptions& options, const ConfigTarget& target,
           const std::optional<std::string>& written) {
  const std::string folder = options.file.substr(0, options.file.rfind('/') + 1);
  if (auto made = protocol::MakeFolders(folder); !made) return ReportError(made.error());
  const FolderLock lock(folder);
  auto file = ReadConfig(options.file);
  if (!file) return ReportError(file.error());
  std::optional<std::string> text;
  if (written) {
    auto changed = SetInConfig(file->text, target, *written);
    if (!changed) return ReportError(changed.error());
    text = std::move(*changed);
  } else {
    auto changed = UnsetInConfig(file->text, target);
    if (!changed) return ReportError(changed.error());
    text = std::move(*changed);
  }
  if (!text) return Print(target.name() + " is not set in " + Printable(file->path) + "\n");
  if (auto done = WriteFileAtomically(file->path, *text); !done) return ReportError(done.error());
  Output output(STDOUT_FILENO);
  const std::string what = target.name() + (written ? " = " + *written : " is not set any more");
  output.Write(Printable(what) + " in " + Printable(file->path) + "\n");
  file->text = std::move(*text);
  file->read = cli::ReadConfigText(file->text);
  TellProblems(*file);
  const int code = TellDaemon(options, *target.key, output);
  return FinishOutput(output, code);
}

int Reload(const ConfigOptions& options, const ConfigFileText& file) {
  if (file.fatal()) return TellProblems(file);
  const auto daemon = FindRunningDaemon(options.access);
  if (!daemon) {
    return ReportError({ErrorCode::kUnreachable,
                        "no daemon runs",
                        "the next one reads the file when it starts",
                        {}});
  }
  if (auto told = ReloadDaemon(*daemon); !told) return ReportError(told.error());
  return Print(daemon->name() +
               ", was told to read its config file; `mk logs` shows what changed\n");
}

// ---------------------------------------------------------------- the command line

std::optional<int> ParseConfig(const Command& command, int argc, char** argv,
                               ConfigOptions& options) {
  CommandLine line(command);
  line.app()
      .add_option("ACTION", options.action,
                  "path: of the file; get, set, unset: a key; check: the file; reload: makes the "
                  "daemon read it (default: show all)")
      ->check(OneOf({"path", "get", "set", "unset", "check", "reload"}));
  line.app().add_option("KEY", options.key, "A setting: max_batch, aliases.story");
  line.app().add_option("VALUE", options.value, "Of set: its new value");
  line.app()
      .add_option("--file", options.file, "Another config file than the usual one")
      ->type_name("FILE");
  line.app().add_flag("--reload", options.reload, "After set and unset: the daemon reads the file");
  line.app().add_flag("--json", options.json, "JSON instead of text (show, get, check)");
  line.AddAccess(options.access, false);
  std::vector<char*> words = ValuesLast(argc, argv);
  if (auto code = line.Parse(static_cast<int>(words.size()), words.data())) return code;
  options.file = options.file.empty() ? cli::ConfigFile() : AbsolutePath(options.file);
  const bool changes = options.action == "set" || options.action == "unset";
  const bool has_key = changes || options.action == "get";
  if (has_key && options.key.empty()) {
    return ReportUsage("`mk config " + options.action + "` wants a key", "`mk config` lists them");
  }
  if (options.action == "set" && !options.value) {
    return ReportUsage("`mk config set` wants a value", "mk config set " + options.key + " VALUE");
  }
  const bool extra =
      (!has_key && !options.key.empty()) || (options.action != "set" && options.value);
  if (extra) {
    return ReportUsage("`mk config " + options.action + "` takes no \"" +
                           (has_key ? *options.value : options.key) + "\"",
                       "`mk config --help` shows examples");
  }
  if (options.reload && !changes) {
    return ReportUsage("--reload goes with set and unset", "`mk config reload` stands alone");
  }
  return std::nullopt;
}

int ActOnKey(const ConfigOptions& options) {
  auto target = FindTarget(options.key);
  if (!target) return ReportError(target.error());
  if (options.action == "unset") return Change(options, *target, std::nullopt);
  if (options.action == "set") {
    auto written = WrittenValue(*target, *options.value);
    if (!written) return ReportError(written.error());
    return Change(options, *target, *written);
  }
  auto file = ReadConfig(options.file);
  if (!file) return ReportError(file.error());
  return Get(options, *file, *target);
}

}  // namespace

int ConfigCommand(const Command& command, int argc, char** argv) {
  ConfigOptions options;
  if (auto code = ParseConfig(command, argc, argv, options)) return *code;
  if (options.action == "path") return Print(options.file + "\n");
  if (!options.key.empty()) return ActOnKey(options);
  auto file = ReadConfig(options.file);
  if (!file) return ReportError(file.error());
  if (options.action == "check") return Check(options, *file);
  if (options.action == "reload") return Reload(options, *file);
  return Show(options, *file);
}

}  // namespace mk::client
