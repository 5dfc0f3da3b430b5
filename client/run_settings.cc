#include "client/run_settings.h"

#include <unistd.h>

#include <set>

#include "client/generation_options.h"
#include "client/input.h"
#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

// What CLI11 fills in before it becomes a request.
struct Raw {
  TextSource prompt;
  GenerationOptions generation;
  LookOptions looks;
  std::string ids;
  bool go_on = false;  // --continue
  bool json = false;
  bool stream_json = false;
  std::optional<uint64_t> logprobs;
};

void AddPromptOptions(CommandLine& line, Raw& raw, RunSettings& options) {
  CLI::App& app = line.app();
  app.add_option("prompt", raw.prompt.argument, "Text to continue; - or nothing: standard input");
  app.add_option("-f,--file", raw.prompt.file, "Read the prompt from a file")->type_name("FILE");
  app.add_option("--ids", raw.ids, "Token ids as the prompt, taken as they are: 1,2,3 or @FILE")
      ->type_name("IDS");
  raw.generation.AddChat(line, options.args);
  raw.generation.AddMemory(line, options.args);
  raw.generation.AddSave(line, options.args);
  app.add_option("--session", options.args.session,
                 "Go on with a session, and keep what was said in it; a new name begins one")
      ->type_name("SESSION");
  app.add_flag("--continue", raw.go_on,
               "With --session or --memory: go on with its text, without new one");
  line.AddNumber("--undo", options.args.session_undo,
                 "With --session: in the place of its last turn, or the last N", 1, 1 << 20);
}

void AddOutputOptions(CommandLine& line, Raw& raw, RunSettings& options) {
  CLI::App& app = line.app();
  app.add_flag("--json", raw.json, "One JSON object at the end instead of text");
  app.add_flag("--stream-json", raw.stream_json, "One JSON object per line for every reply");
  app.add_flag("--stats", options.stats, "Statistics on stderr, also when it is no terminal");
  line.AddNumber("--logprobs", raw.logprobs,
                 "Log probability of every token, and so many of the likeliest in its place; as "
                 "text a line for each token",
                 0, protocol::kMaxLogprobs);
  app.add_flag("--routes", options.routes,
               "With --json or --stream-json: the experts that every layer picked");
  app.add_option("--dump-logits", options.dump_logits,
                 "Write logits: f32 LE, a row after the prompt and after every token")
      ->type_name("FILE");
  app.add_option("--dump-hidden", options.dump_hidden,
                 "Write hidden states: f32 LE, [position][layer][hidden]")
      ->type_name("FILE");
  raw.looks.AddAll(line);
}

// Whether the text of the session or of the pack is all that there is to go on with.
protocol::Result<bool> TakeGoOn(const Raw& raw, const protocol::RunArgs& args) {
  const bool remembers = !args.session.empty() || !args.memory.empty();
  if ((raw.go_on && !remembers) || (args.session_undo > 0 && args.session.empty())) {
    return Fail(UsageError("--continue needs --session or --memory, --undo needs --session",
                           "for example: mk run --session story --continue"));
  }
  if (!raw.go_on) return false;
  if (raw.prompt.has_argument || !raw.prompt.file.empty() || !raw.ids.empty() || !args.raw) {
    return Fail(UsageError("--continue excludes a prompt and --chat",
                           "it goes on with the text of the session or the pack alone"));
  }
  return true;
}

const char* EmptyPromptHint(const protocol::RunArgs& args) {
  if (!args.memory.empty()) {
    return "a chat turn needs a message; without --chat the text of the pack goes on";
  }
  if (!args.session.empty() && args.raw) return "--continue goes on with the session's own text";
  return "give some text: mk run \"Once upon a time\"";
}

Status TakePrompt(const Raw& raw, RunSettings& options) {
  protocol::RunArgs& args = options.args;
  const auto go_on = TakeGoOn(raw, args);
  if (!go_on) return Fail(go_on.error());
  if (*go_on) return {};
  if (!raw.ids.empty()) {
    if (raw.prompt.has_argument || !raw.prompt.file.empty() || !args.raw) {
      return Fail(UsageError("--ids excludes a text prompt and --chat",
                             "give the ids alone; they are taken as they are"));
    }
    auto ids = ReadIds(raw.ids);
    if (!ids) return Fail(std::move(ids.error()));
    args.ids = std::move(*ids);
    return {};
  }
  // At a terminal a pack goes on by itself.
  const bool goes_on = !args.memory.empty() && args.raw;
  if (goes_on && !raw.prompt.given() && ::isatty(STDIN_FILENO) == 1) return {};
  auto text = ReadText(raw.prompt, "prompt");
  if (!text) return Fail(std::move(text.error()));
  if (!text->empty()) {
    args.prompt = std::move(*text);
  } else if (!goes_on) {
    return Fail(UsageError("the prompt is empty", EmptyPromptHint(args)));
  }
  return {};
}

// Every file has a place of its own: none takes that of another, or of the prompt.
Status CheckFiles(const Raw& raw, const RunSettings& options) {
  const LookSettings& looks = options.looks;
  std::set<std::string> known;
  if (!raw.prompt.file.empty()) known.insert(AbsolutePath(raw.prompt.file));
  for (const std::string* path : {&options.dump_logits, &options.dump_hidden, &looks.sketch,
                                  &looks.trace, &looks.demands, &looks.store}) {
    if (path->empty() || known.insert(AbsolutePath(*path)).second) continue;
    return Fail(UsageError("two options name the file " + *path, "give each a name of its own"));
  }
  return {};
}

Status TakeOptions(const Raw& raw, RunSettings& options) {
  protocol::RunArgs& args = options.args;
  if (raw.json && raw.stream_json)
    return Fail(UsageError("--json excludes --stream-json", "leave out one"));
  if (raw.json) options.format = RunFormat::kJson;
  if (raw.stream_json) options.format = RunFormat::kStreamJson;
  if (options.format == RunFormat::kText && options.routes) {
    return Fail(UsageError("--routes needs --json or --stream-json",
                           "add --json; text has no place for them"));
  }
  if (raw.logprobs) args.logprobs = static_cast<uint32_t>(*raw.logprobs);
  if (Status taken = raw.generation.Take(args); !taken) return taken;
  args.want_routes = options.routes;
  if (Status taken = raw.looks.Take(args, options.looks); !taken) return taken;
  if (Status good = CheckFiles(raw, options); !good) return good;
  args.want_logits = !options.dump_logits.empty();
  args.want_hidden = !options.dump_hidden.empty();
  args.stats = options.stats || options.format != RunFormat::kText;
  return {};
}

}  // namespace

std::optional<int> ParseRunSettings(const Command& command, int argc, char** argv,
                                    RunSettings& options) {
  CommandLine line(command);
  Raw raw;
  AddPromptOptions(line, raw, options);
  line.AddModel(options.args.model);
  line.AddStream(options.args.stream);
  line.app().add_flag("--allow-degraded", options.allow_degraded,
                      "Exit with 0 where shadows had a part in the answer (default: with 4)");
  line.AddPriority(options.args.priority);
  raw.generation.AddSampling(line, options.args,
                             "Seed of sampling (default: a new one, shown by --stats)");
  AddOutputOptions(line, raw, options);
  line.AddAccess(options.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  raw.prompt.has_argument = line.app().get_option("prompt")->count() > 0;
  Status taken = TakeOptions(raw, options);
  if (taken) taken = TakePrompt(raw, options);
  if (!taken) return ReportError(taken.error());
  return std::nullopt;
}

}  // namespace mk::client
