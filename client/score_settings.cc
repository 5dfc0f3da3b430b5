#include "client/score_settings.h"

#include <unistd.h>

#include "client/input.h"
#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

struct Raw {
  std::vector<std::string> texts;
  std::string ids;
  std::string timeout;
  bool lines = false;
  bool nul = false;
  bool jsonl = false;
  bool no_chunked_prefill = false;
};

void AddTexts(CommandLine& line, Raw& raw, ScoreSettings& settings) {
  CLI::App& app = line.app();
  app.add_option("TEXT", raw.texts, "Texts, each on its own; none: standard input is one text")
      ->type_name("");
  app.add_option("-f,--file", settings.file, "Read the text, or the records, from a file")
      ->type_name("FILE");
  app.add_option("--ids", raw.ids, "Token ids as the text, taken as they are: 1,2,3 or @FILE")
      ->type_name("IDS");
  app.add_option("--context", settings.context,
                 "What stands before every text: it is read, but not scored")
      ->type_name("TEXT");
  app.add_flag("--plain", settings.args.plain, "Without the id that begins a text");
  app.add_flag("--lines", raw.lines, "Every line of the file, or of standard input, is a text");
  app.add_flag("-0,--null", raw.nul, "The same with a NUL after each text instead of a newline");
  app.add_flag(
      "--jsonl", raw.jsonl,
      "One JSON object per line: \"text\", perhaps with a \"context\", or \"ids\", perhaps "
      "with \"context_ids\"; an \"id\" is repeated in the answer");
}

void AddOutput(CommandLine& line, ScoreSettings& settings) {
  CLI::App& app = line.app();
  app.add_flag("--tokens", settings.tokens, "A row for every token");
  app.add_flag("--json", settings.json,
               "One JSON object per text, with its tokens, then the total");
  line.AddNumber("-j,--jobs", settings.flow.jobs,
                 "Texts at once (default: as many as the daemon decodes in one step)", 1, 1024);
  app.add_flag("--fail-fast", settings.flow.fail_fast, "Stop at the first text that fails");
  app.add_flag("--stats", settings.flow.stats,
               "Statistics at the end on stderr, also when it is no terminal");
}

Status TakeRecords(const Raw& raw, ScoreSettings& settings) {
  if (int{raw.lines} + int{raw.nul} + int{raw.jsonl} > 1) {
    return Fail(UsageError("--lines, --null and --jsonl exclude each other", "leave out two"));
  }
  if (!raw.texts.empty() || !raw.ids.empty()) {
    return Fail(UsageError("--lines, --null and --jsonl exclude texts on the command line",
                           "name their file with -f, or use a pipe"));
  }
  if (settings.file.empty() && ::isatty(STDIN_FILENO) == 1) {
    return Fail(UsageError("there are no texts", "name a file with -f, or use a pipe"));
  }
  if (settings.file.empty()) settings.file = "-";
  settings.records = true;
  settings.input = raw.jsonl ? MapForm::kJson : raw.nul ? MapForm::kNul : MapForm::kLines;
  return {};
}

Status TakeIds(const Raw& raw, ScoreSettings& settings) {
  if (!raw.texts.empty() || !settings.file.empty() || !settings.context.empty()) {
    return Fail(UsageError("--ids excludes texts, --file and --context",
                           "--jsonl takes ids with \"context_ids\""));
  }
  auto ids = ReadIds(raw.ids);
  if (!ids) return Fail(std::move(ids.error()));
  settings.given.emplace_back().ids = std::move(*ids);
  return {};
}

Status TakeTexts(const Raw& raw, ScoreSettings& settings) {
  if (!raw.ids.empty()) return TakeIds(raw, settings);
  const bool one = raw.texts.size() <= 1;
  if (!one && !settings.file.empty()) {
    return Fail(UsageError("--file excludes texts on the command line", "leave out one of them"));
  }
  std::vector<std::string> texts = raw.texts;
  if (one) {
    TextSource source{raw.texts.empty() ? "" : raw.texts.front(), !raw.texts.empty(),
                      settings.file};
    auto text = ReadText(source, "text");
    if (!text) return Fail(std::move(text.error()));
    texts = {std::move(*text)};
  }
  for (std::string& text : texts) {
    if (text.empty()) return Fail(UsageError("a text is empty", "there is nothing to score"));
    protocol::ScoreItem& item = settings.given.emplace_back();
    item.text = std::move(text);
    item.context = settings.context;
  }
  return {};
}

Status Take(const Raw& raw, ScoreSettings& settings) {
  MakeAbsolute(settings.args.model);
  settings.args.chunked_prefill = !raw.no_chunked_prefill;
  settings.args.tokens = settings.tokens || settings.json;
  settings.flow.window = settings.args.window;
  settings.flow.by_place = !settings.json;
  if (settings.tokens && settings.json) {
    return Fail(UsageError("--tokens excludes --json", "the tokens are part of the JSON"));
  }
  if (!raw.timeout.empty()) {
    auto timeout = ParseDurationMs(raw.timeout);
    if (!timeout) return Fail(std::move(timeout.error()));
    if (*timeout == 0) return Fail(UsageError("--timeout is 0", "leave it out for no limit"));
    settings.args.timeout_ms = *timeout;
  }
  if (raw.lines || raw.nul || raw.jsonl) return TakeRecords(raw, settings);
  Status taken = TakeTexts(raw, settings);
  settings.flow.alone = settings.given.size() == 1;
  return taken;
}

}  // namespace

std::optional<int> ParseScoreSettings(const Command& command, int argc, char** argv,
                                      ScoreSettings& settings) {
  CommandLine line(command);
  Raw raw;
  AddTexts(line, raw, settings);
  AddOutput(line, settings);
  line.AddModel(settings.args.model);
  line.AddStream(settings.args.stream);
  line.app().add_flag("--stream-fallback", settings.args.stream_fallback,
                      "Take shadows for experts that are not in memory instead of waiting; the "
                      "figures are degraded");
  line.AddPriority(settings.args.priority);
  line.AddPrecision(settings.args.precision, "Arithmetic");
  line.app().add_flag("--no-chunked-prefill", raw.no_chunked_prefill,
                      "Read texts token by token instead of in blocks of 64");
  line.app()
      .add_option("--timeout", raw.timeout, "Give up on a text after so long: 90, 1.5s, 10m")
      ->type_name("TIME");
  line.AddAccess(settings.flow.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  if (Status taken = Take(raw, settings); !taken) return ReportError(taken.error());
  return std::nullopt;
}

}  // namespace mk::client
