#include "client/map_settings.h"

#include <unistd.h>

#include "client/generation_options.h"
#include "client/report.h"

namespace mk::client {
namespace {

struct Raw {
  GenerationOptions generation;
  bool nul = false;
  bool jsonl = false;
  bool json = false;
};

void AddForms(CommandLine& line, Raw& raw, MapSettings& settings) {
  CLI::App& app = line.app();
  app.add_option("FILE", settings.file, "Prompts, one per line; - or nothing: standard input");
  app.add_flag("-0,--null", raw.nul,
               "Prompts and answers as they are, each with a NUL after it instead of a newline");
  app.add_flag("--jsonl", raw.jsonl,
               "Items and answers as one JSON object per line. An item has \"prompt\", \"ids\" or "
               "\"messages\", "
               "perhaps an \"id\" that its answer repeats, and options of its own under the names "
               "that `mk run --json` shows");
  app.add_flag("--json", raw.json,
               "Answers as one JSON object per line, whatever the prompts come as");
}

void AddFlow(CommandLine& line, MapSettings& settings) {
  CLI::App& app = line.app();
  line.AddNumber("-j,--jobs", settings.flow.jobs,
                 "Runs at once (default: as many as the daemon decodes in one step)", 1, 1024);
  app.add_flag("--fail-fast", settings.flow.fail_fast, "Stop at the first item that fails");
  app.add_flag("--stats", settings.flow.stats,
               "Statistics at the end on stderr, also when it is no terminal");
}

protocol::Status Take(const Raw& raw, MapSettings& settings) {
  if (raw.nul && raw.jsonl) {
    return protocol::Fail(UsageError("--null excludes --jsonl", "leave out one of them"));
  }
  if (raw.nul) settings.input = settings.output = MapForm::kNul;
  if (raw.jsonl) settings.input = MapForm::kJson;
  if (raw.jsonl || raw.json) settings.output = MapForm::kJson;
  if (settings.file.empty()) {
    if (::isatty(STDIN_FILENO) == 1) {
      return protocol::Fail(
          UsageError("there are no prompts", "name a file with one per line, or use a pipe"));
    }
    settings.file = "-";
  }
  settings.args.stats = settings.output == MapForm::kJson;
  settings.flow.window = settings.args.window;
  settings.flow.by_place = settings.output != MapForm::kJson;
  return raw.generation.Take(settings.args);
}

}  // namespace

std::optional<int> ParseMapSettings(const Command& command, int argc, char** argv,
                                    MapSettings& settings) {
  CommandLine line(command);
  Raw raw;
  AddForms(line, raw, settings);
  AddFlow(line, settings);
  settings.args.priority = protocol::kBackground;
  line.AddPriority(settings.args.priority);
  raw.generation.AddChat(line, settings.args);
  raw.generation.AddMemory(line, settings.args);
  line.AddModel(settings.args.model);
  line.AddStream(settings.args.stream);
  raw.generation.AddSampling(line, settings.args,
                             "Seed of the first item; the next has the next one, whatever order "
                             "they run in (default: new ones)");
  line.AddAccess(settings.flow.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  if (protocol::Status taken = Take(raw, settings); !taken) return ReportError(taken.error());
  return std::nullopt;
}

}  // namespace mk::client
