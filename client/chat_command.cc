// `mk chat`: at a terminal, or line by line from a pipe.

#include <unistd.h>

#include <cstdio>

#include "client/chat.h"
#include "client/chat_settings.h"
#include "client/commands.h"
#include "client/input_history.h"
#include "client/json_format.h"
#include "client/line_editor.h"
#include "client/record_reader.h"
#include "client/report.h"
#include "client/slash_commands.h"
#include "client/state_folder.h"
#include "client/turn_text.h"

namespace mk::client {
namespace {

using protocol::Result;
using protocol::Status;

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

// One message, or one command.
TurnEnd TakeText(const std::string& text, bool commands, Chat& chat, Output& output) {
  if (commands && (text == "quit" || text == "exit")) return {protocol::kExitDone, true};
  if (commands && IsSlashCommand(text)) {
    const TurnEnd end = RunSlashCommand(text, chat, output);
    output.Drain();
    return end;
  }
  return chat.Say(commands && text.starts_with("//") ? text.substr(1) : text);
}

// ---------------------------------------------------------------- at a terminal

// What was typed in earlier chats. A history that cannot be used is no reason not to chat.
InputHistory OpenHistory(bool keep) {
  if (!keep) return {};
  Result<std::string> folder = MakeStateFolder();
  Result<InputHistory> history =
      folder ? InputHistory::Open(*folder + "/chat_history")
             : Result<InputHistory>(protocol::Fail(std::move(folder.error())));
  if (history) return std::move(*history);
  ReportError(history.error());
  return {};
}

void Remember(const std::string& text, InputHistory& history, LineEditor& editor) {
  editor.Remember(text);
  if (Status added = history.Add(text); !added) {
    ReportError(added.error());
    history = {};  // said once
  }
}

int ChatAtTerminal(const ChatOptions& options, Chat& chat, Output& output) {
  auto editor = LineEditor::Create(CompleteSlashCommand);
  if (!editor) return ReportError(editor.error());
  InputHistory history = OpenHistory(options.keep_history);
  for (const std::string& entry : history.entries()) (*editor)->Remember(entry);
  TurnText turn;
  while (true) {
    std::string line;
    const LineEditor::End end = (*editor)->Read(turn.open() ? ". " : "> ", line);
    if (end == LineEditor::End::kTerminated) return protocol::kExitInterrupted;
    if (end == LineEditor::End::kEndOfInput) {
      output.Write("\n");
      return FinishOutput(output, protocol::kExitDone);
    }
    if (end == LineEditor::End::kInterrupted) {
      turn.Drop();
      continue;
    }
    if (!turn.Push(line) || IsBlank(turn.text())) continue;
    Remember(turn.text(), history, **editor);
    const TurnEnd taken = TakeText(turn.text(), true, chat, output);
    if (taken.leave) return FinishOutput(output, taken.code);
  }
}

// ---------------------------------------------------------------- from a pipe

// A turn that failed ends the chat: what comes after it builds on it.
class PipedChat {
 public:
  PipedChat(const ChatOptions& options, Chat& chat, Output& output)
      : options_(options), chat_(chat), output_(output) {}

  int Run() {
    RecordReader reader(STDIN_FILENO, "standard input", options_.nul ? '\0' : '\n',
                        protocol::kLimits.text_bytes);
    while (true) {
      Record record;
      while (reader.Next(record)) {
        if (!Take(record)) return code_;
      }
      if (reader.ended()) return code_;
      if (Status filled = reader.Fill(); !filled) return ReportError(filled.error());
    }
  }

 private:
  // False: this was the last one.
  bool Take(Record& record) {
    if (record.too_long) {
      code_ = ReportUsage(
          "a message is longer than " + std::to_string(protocol::kLimits.text_bytes) + " bytes",
          "give a shorter one");
      return false;
    }
    std::string& text = record.bytes;
    if (!options_.nul && text.ends_with('\r')) text.pop_back();
    if (options_.commands) {
      if (!turn_.Push(text)) return true;
      text = turn_.text();
    } else if (IsSlashCommand(text) && !told_) {
      told_ = true;
      std::fputs(("mk: \"" + text.substr(0, 20) +
                  "\" is a message like every line of a pipe; --commands makes it a command\n")
                     .c_str(),
                 stderr);
    }
    if (IsBlank(text)) return true;
    const TurnEnd end = TakeText(text, options_.commands, chat_, output_);
    if (options_.nul && !options_.chat.json) output_.Write(std::string_view("\0", 1));
    if (!output_.Drain()) {
      code_ = FinishOutput(output_, protocol::kExitFailed);
      return false;
    }
    if (end.code != protocol::kExitDone) code_ = end.code;
    return !end.leave && (end.code == protocol::kExitDone || end.code == protocol::kExitDegraded);
  }

  const ChatOptions& options_;
  Chat& chat_;
  Output& output_;
  TurnText turn_;
  bool told_ = false;
  int code_ = protocol::kExitDone;
};

Status Begin(const ChatOptions& options, Chat& chat) {
  if (!options.load.empty()) {
    auto loaded = LoadTranscript(options.load);
    if (!loaded) return protocol::Fail(std::move(loaded.error()));
    chat.conversation() = std::move(*loaded);
  }
  if (options.system) chat.conversation().system = options.system;
  return chat.Open();
}

}  // namespace

int ChatCommand(const Command& command, int argc, char** argv) {
  ChatOptions options;
  if (auto code = ParseChatOptions(command, argc, argv, options)) return *code;
  Output output(STDOUT_FILENO);
  Chat chat(options.chat, output);
  if (Status begun = Begin(options, chat); !begun) {
    if (options.chat.json) output.Write(JsonLine(ErrorToJson(begun.error())));
    FinishOutput(output, protocol::kExitFailed);
    return ReportError(begun.error());
  }
  if (options.chat.interactive) return ChatAtTerminal(options, chat, output);
  if (options.prompt) {
    const int code = chat.Say(*options.prompt).code;
    return FinishOutput(output, code);
  }
  return PipedChat(options, chat, output).Run();
}

}  // namespace mk::client
