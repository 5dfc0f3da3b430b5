#include "client/chat_settings.h"

#include <unistd.h>

#include "client/chat_values.h"
#include "client/generation_options.h"
#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

// What CLI11 fills in before it becomes settings.
struct Raw {
  GenerationOptions generation{kChatMaxNew};
  std::string prompt;
  bool plain = false;
  bool no_history = false;
};

void AddInput(CommandLine& line, Raw& raw, ChatOptions& options) {
  CLI::App& app = line.app();
  app.add_option("-p,--prompt", raw.prompt, "Say this, show the answer and leave")
      ->type_name("TEXT");
  app.add_flag("-0,--null", options.nul,
               "Messages from a pipe end with NUL instead of a newline, and so do answers");
  app.add_flag("--commands", options.commands,
               "Lines from a pipe that begin with / are commands, as at a terminal; otherwise "
               "every line is a message");
  app.add_option("--load", options.load, "Go on with a conversation that was saved")
      ->type_name("FILE");
  app.add_option("--save", options.chat.save, "Write the conversation there after every answer")
      ->type_name("FILE");
  app.add_option("--session", options.chat.session,
                 "Keep the conversation in a session of the daemon; a known name goes on with it")
      ->type_name("SESSION");
  app.add_flag("--no-history", raw.no_history,
               "Neither recall nor keep what was typed in earlier chats");
}

void AddForm(CommandLine& line, Raw& raw, ChatOptions& options) {
  CLI::App& app = line.app();
  app.add_flag("--raw", raw.plain,
               "Go on with the text instead of taking turns; so do models without a chat template");
  raw.generation.AddTemplate(line, options.chat.args, "");
  app.add_flag("--json", options.chat.json, "One JSON object per answer instead of text");
  app.add_flag("--stats", options.chat.stats, "Statistics on stderr after every answer");
}

Status Take(const Raw& raw, ChatOptions& options) {
  ChatSettings& chat = options.chat;
  if (Status taken = raw.generation.Take(chat.args); !taken) return taken;
  options.system = std::move(chat.args.system);
  chat.args.system.reset();
  const bool templated = options.system || !chat.args.thinking || !chat.args.dialect.empty();
  if (raw.plain && templated) {
    return Fail(UsageError("--raw excludes --system, --no-thinking and --dialect",
                           "leave out --raw, or the others"));
  }
  chat.plain = raw.plain;
  options.keep_history = !raw.no_history;
  if (!raw.prompt.empty()) options.prompt = raw.prompt;
  if (!chat.session.empty() && !options.load.empty()) {
    return Fail(UsageError("--session excludes --load", "a session has its own conversation"));
  }
  if (options.prompt && (options.nul || options.commands)) {
    return Fail(UsageError("--prompt excludes --null and --commands",
                           "they are of messages that come from a pipe"));
  }
  chat.interactive = !options.prompt && !chat.json && !options.nul && ::isatty(STDIN_FILENO) == 1 &&
                     ::isatty(STDOUT_FILENO) == 1;
  options.commands = options.commands || (!options.prompt && ::isatty(STDIN_FILENO) == 1);
  return {};
}

}  // namespace

std::optional<int> ParseChatOptions(const Command& command, int argc, char** argv,
                                    ChatOptions& options) {
  CommandLine line(command);
  Raw raw;
  AddInput(line, raw, options);
  AddForm(line, raw, options);
  line.AddModel(options.chat.args.model);
  line.AddStream(options.chat.args.stream);
  raw.generation.AddSampling(line, options.chat.args,
                             "Seed of the first answer; the next ones have the next ones "
                             "(default: a new one for every answer)");
  line.AddAccess(options.chat.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  if (Status taken = Take(raw, options); !taken) return ReportError(taken.error());
  return std::nullopt;
}

}  // namespace mk::client
