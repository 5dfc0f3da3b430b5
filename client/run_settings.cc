#include "client/run_settings.h"

#include "client/input.h"
#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

// What CLI11 fills in before it becomes a request.
struct Raw {
  TextSource prompt;
  std::string ids;
  std::string timeout;
  std::string system;
  bool raw = false;
  bool chat = false;
  bool no_thinking = false;
  bool no_chunked_prefill = false;
  bool json = false;
  bool stream_json = false;
  uint64_t max_new = 256;
  uint64_t top_k = 0;
  std::optional<uint64_t> seed;
};

void AddPromptOptions(CommandLine& line, Raw& raw, RunSettings& options) {
  CLI::App& app = line.app();
  app.add_option("prompt", raw.prompt.argument, "Text to continue; - or nothing: standard input");
  app.add_option("-f,--file", raw.prompt.file, "Read the prompt from a file")->type_name("FILE");
  app.add_option("--ids", raw.ids, "Token ids as the prompt, taken as they are: 1,2,3 or @FILE")
      ->type_name("IDS");
  app.add_flag("--raw", raw.raw, "Continue the prompt as plain text (this is the default)");
  app.add_flag("--chat", raw.chat, "Answer the prompt as a chat turn, with the model's template");
  app.add_option("--system", raw.system, "System message of the chat turn (implies --chat)");
  app.add_flag("--no-thinking", raw.no_thinking, "Chat without a think channel (implies --chat)");
  app.add_option("--dialect", options.args.dialect,
                 "Chat template: k3, nano-sft (default: the vocabulary's; implies --chat)")
      ->check(CLI::IsMember({"k3", "nano-sft"}));
}

void AddSamplingOptions(CommandLine& line, Raw& raw, RunSettings& options) {
  CLI::App& app = line.app();
  protocol::RunArgs& args = options.args;
  line.AddNumber("-n,--max-new", raw.max_new, "Tokens to generate at most (default 256)", 0,
                 1 << 20);
  line.AddReal("-t,--temp,--temperature", args.temperature,
               "0: always the likeliest token (default); higher: more varied", {0, 100});
  line.AddReal("--top-p", args.top_p, "Sample from the likeliest tokens of this total probability",
               {0, 1, true});
  line.AddNumber("--top-k", raw.top_k, "Sample from so many likeliest tokens (0: all)", 0, 1 << 20);
  line.AddReal("--min-p", args.min_p,
               "Leave out tokens less likely than this part of the likeliest", {0, 1});
  line.AddNumber("--seed", raw.seed, "Seed of sampling (default: a new one, shown by --stats)");
  app.add_option("--stop", args.stop, "Text that ends the answer; may be given several times")
      ->type_name("TEXT")
      ->expected(1)
      ->take_all();
  line.AddPrecision(args.precision, "Arithmetic");
  app.add_flag("--no-chunked-prefill", raw.no_chunked_prefill,
               "Read the prompt token by token instead of in blocks of 64");
  app.add_option("--timeout", raw.timeout, "Give up after so long: 90, 1.5s, 10m")
      ->type_name("TIME");
}

void AddOutputOptions(CommandLine& line, Raw& raw, RunSettings& options) {
  CLI::App& app = line.app();
  protocol::RunArgs& args = options.args;
  app.add_flag("--json", raw.json, "One JSON object at the end instead of text");
  app.add_flag("--stream-json", raw.stream_json, "One JSON object per line for every reply");
  app.add_flag("--stats", options.stats, "Statistics on stderr, also when it is no terminal");
  app.add_flag("--logprobs", args.logprobs, "With --stream-json: log probability of every token");
  app.add_flag("--routes", args.want_routes,
               "With --json or --stream-json: the experts that every layer picked");
  app.add_option("--dump-logits", options.dump_logits,
                 "Write logits: f32 LE, a row after the prompt and after every token")
      ->type_name("FILE");
  app.add_option("--dump-hidden", options.dump_hidden,
                 "Write hidden states: f32 LE, [position][layer][hidden]")
      ->type_name("FILE");
}

Status TakePrompt(const Raw& raw, RunSettings& options) {
  protocol::RunArgs& args = options.args;
  const bool chat = raw.chat || !raw.system.empty() || raw.no_thinking || !args.dialect.empty();
  if (raw.raw && chat) {
    return Fail(UsageError("--raw excludes --chat, --system, --no-thinking and --dialect",
                           "leave out --raw, or the others"));
  }
  args.raw = !chat;
  args.thinking = !raw.no_thinking;
  if (!raw.system.empty()) args.system = raw.system;
  if (!raw.ids.empty()) {
    if (raw.prompt.has_argument || !raw.prompt.file.empty() || chat) {
      return Fail(UsageError("--ids excludes a text prompt and --chat",
                             "give the ids alone; they are taken as they are"));
    }
    auto ids = ReadIds(raw.ids);
    if (!ids) return Fail(std::move(ids.error()));
    args.ids = std::move(*ids);
    return {};
  }
  auto text = ReadText(raw.prompt, "prompt");
  if (!text) return Fail(std::move(text.error()));
  if (text->empty()) {
    return Fail(UsageError("the prompt is empty", "give some text: mk run \"Once upon a time\""));
  }
  args.prompt = std::move(*text);
  return {};
}

Status TakeOptions(const Raw& raw, RunSettings& options) {
  protocol::RunArgs& args = options.args;
  if (raw.json && raw.stream_json)
    return Fail(UsageError("--json excludes --stream-json", "leave out one"));
  if (raw.json) options.format = RunFormat::kJson;
  if (raw.stream_json) options.format = RunFormat::kStreamJson;
  if (options.format == RunFormat::kText && (args.want_routes || args.logprobs)) {
    return Fail(UsageError("--routes and --logprobs need --json or --stream-json",
                           "add --json; text has no place for them"));
  }
  if (!raw.timeout.empty()) {
    auto timeout = ParseDurationMs(raw.timeout);
    if (!timeout) return Fail(std::move(timeout.error()));
    if (*timeout == 0) return Fail(UsageError("--timeout is 0", "leave it out for no limit"));
    args.timeout_ms = *timeout;
  }
  args.max_new = static_cast<uint32_t>(raw.max_new);
  args.top_k = static_cast<uint32_t>(raw.top_k);
  args.seed = raw.seed;
  args.chunked_prefill = !raw.no_chunked_prefill;
  args.want_logits = !options.dump_logits.empty();
  args.want_hidden = !options.dump_hidden.empty();
  args.stats = options.stats || options.format != RunFormat::kText;
  MakeAbsolute(args.model);
  return {};
}

}  // namespace

std::optional<int> ParseRunSettings(const Command& command, int argc, char** argv,
                                    RunSettings& options) {
  CommandLine line(command);
  Raw raw;
  AddPromptOptions(line, raw, options);
  line.AddModel(options.args.model);
  AddSamplingOptions(line, raw, options);
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
