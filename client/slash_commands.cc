#include "client/slash_commands.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "cli/nearest.h"
#include "client/chat_values.h"
#include "client/command_line.h"
#include "client/report.h"
#include "client/run_report.h"

namespace mk::client {
namespace {

using protocol::Status;

struct SlashCommand {
  const char* name;
  const char* value;  // "FILE"; empty: it takes none
  const char* doc;
  TurnEnd (*run)(Chat& chat, Output& output, const std::string& value);
};

TurnEnd Told(const Status& status) {
  return {status ? protocol::kExitDone : ReportError(status.error()), false};
}
TurnEnd Refused(std::string message, std::string hint) {
  return {ReportError(UsageError(std::move(message), std::move(hint))), false};
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 1, width), ' ');
  return text;
}

std::string TurnsText(size_t count) {
  return std::to_string(count) + (count == 1 ? " turn" : " turns");
}

TurnEnd Help(Chat& chat, Output& output, const std::string& value);

TurnEnd Show(Chat& chat, Output& output, const std::string&) {
  const Conversation& said = chat.conversation();
  if (said.system) output.Write("system: " + *said.system + "\n");
  std::string plain;
  for (const Turn& turn : said.turns) {
    if (chat.plain()) {
      plain += turn.user.value_or("") + turn.answer.content;
    } else {
      output.Write("> " + turn.user.value_or("") + "\n" + turn.answer.content + "\n");
    }
  }
  if (!plain.empty()) output.Write(plain + (plain.ends_with('\n') ? "" : "\n"));
  return {};
}

TurnEnd Reset(Chat& chat, Output& output, const std::string&) {
  const Status reset = chat.Reset();
  if (reset) output.Write("a new conversation\n");
  return Told(reset);
}

TurnEnd Undo(Chat& chat, Output& output, const std::string& value) {
  auto& turns = chat.conversation().turns;
  size_t count = 1;
  if (!value.empty()) {
    const char* end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, count);
    if (error != std::errc() || rest != end || count == 0) {
      return Refused("\"" + value + "\" is no number of turns", "/undo 2");
    }
  }
  if (count > turns.size()) {
    return Refused("the conversation has only " + TurnsText(turns.size()), "/show shows it");
  }
  const size_t left = turns.size() - count;
  const Status undone = chat.Undo(count);
  if (turns.size() == left) {
    output.Write(TurnsText(count) + " taken back, " + std::to_string(left) + " left\n");
  }
  return Told(undone);
}

TurnEnd Retry(Chat& chat, Output&, const std::string&) {
  if (chat.conversation().turns.empty()) return Refused("nothing was said yet", "say something");
  return chat.Retry();
}

TurnEnd More(Chat& chat, Output&, const std::string&) {
  if (!chat.plain()) {
    return Refused("/more is for plain text; the model takes turns", "ask it to go on");
  }
  if (chat.conversation().turns.empty()) return Refused("nothing was said yet", "say something");
  return chat.More();
}

TurnEnd System(Chat& chat, Output& output, const std::string& value) {
  auto& system = chat.conversation().system;
  if (value.empty()) {
    output.Write(system ? *system + "\n" : "there is no system message\n");
    return {};
  }
  if (value == "-") {
    system.reset();
  } else if (chat.plain()) {
    return Refused("plain text has no system message", "begin with a text that says it");
  } else {
    system = value;
  }
  return Told(chat.Changed());
}

TurnEnd Set(Chat& chat, Output& output, const std::string& line) {
  if (line.empty()) {
    for (const ChatValue& value : ChatValues()) {
      output.Write(Padded(value.name, 20) + ShowChatValue(value, chat.settings().args) + "\n");
    }
    return {};
  }
  const size_t blank = line.find(' ');
  const std::string name = line.substr(0, blank);
  const ChatValue* value = FindChatValue(name);
  if (value == nullptr) return Refused("there is no value \"" + name + "\"", "/set shows them all");
  const size_t begin = blank == std::string::npos ? blank : line.find_first_not_of(' ', blank);
  if (begin == std::string::npos) {
    output.Write(ShowChatValue(*value, chat.settings().args) + "\n");
    return {};
  }
  if (chat.settled(*value)) {
    return Refused("a session stays with its " + name, "begin another one with mk chat --session");
  }
  return Told(SetChatValue(*value, line.substr(begin), chat.settings().args));
}

TurnEnd Stats(Chat& chat, Output& output, const std::string& value) {
  if (value == "on" || value == "off") {
    chat.settings().stats = value == "on";
    return {};
  }
  if (!value.empty()) return Refused("/stats: \"" + value + "\" is not on or off", "/stats on");
  const auto& last = chat.last();
  if (!last) return Refused("nothing was said yet", "/stats on shows them after every answer");
  const uint64_t context = last->usage.prompt_tokens + last->usage.completion_tokens;
  output.Write(RunStatsText(*last) + "\n" + TurnsText(chat.conversation().turns.size()) + ", " +
               std::to_string(context) + " tokens with the last answer\n");
  return {};
}

// In a session everything is kept already: its state as a pack.
TurnEnd SavePack(Chat& chat, Output& output, const std::string& value) {
  const auto path = chat.SaveSession(value);
  if (!path) return {ReportError(path.error()), false};
  output.Write("saved in " + *path + "\n");
  return {};
}

TurnEnd Save(Chat& chat, Output& output, const std::string& value) {
  if (!chat.settings().session.empty()) return SavePack(chat, output, value);
  const std::string path = value.empty() ? chat.settings().save : value;
  if (path.empty()) return Refused("/save needs the name of a file", "/save talk.json");
  const Status saved = chat.Save(path);
  if (saved) output.Write("saved in " + path + "\n");
  return Told(saved);
}

TurnEnd Fork(Chat& chat, Output& output, const std::string& value) {
  const std::string& session = chat.settings().session;
  if (session.empty()) {
    return Refused("/fork copies a session, and this chat is in none",
                   "begin with mk chat --session NAME");
  }
  if (value.empty()) return Refused("/fork needs a name for the copy", "/fork other");
  const Status forked = chat.ForkSession(value);
  if (forked)
    output.Write("session " + value + " is a copy; this chat goes on in " + session + "\n");
  return Told(forked);
}

TurnEnd LoadSession(Chat& chat, Output& output, const std::string& name) {
  if (name.empty()) return Refused("/load needs the name of a session", "/load story");
  const Status used = chat.UseSession(name);
  if (used) {
    output.Write("session " + name + ", " + TurnsText(chat.conversation().turns.size()) +
                 "; /show shows them\n");
  }
  return Told(used);
}

TurnEnd Load(Chat& chat, Output& output, const std::string& value) {
  if (!chat.settings().session.empty()) return LoadSession(chat, output, value);
  if (value.empty()) return Refused("/load needs the name of a file", "/load talk.json");
  auto loaded = LoadTranscript(value);
  if (!loaded) return {ReportError(loaded.error()), false};
  if (loaded->system && chat.plain()) {
    return Refused(value + " has a system message, which plain text has not",
                   "take another model with /model, or remove the message from the file");
  }
  chat.conversation() = std::move(*loaded);
  output.Write(TurnsText(chat.conversation().turns.size()) + "; /show shows them\n");
  return Told(chat.Changed());
}

TurnEnd Model(Chat& chat, Output& output, const std::string& value) {
  if (value.empty()) {
    output.Write(chat.model_path() + "\n");
    return {};
  }
  if (!chat.settings().session.empty()) {
    return Refused("a session stays with its model", "begin another one with mk chat --session");
  }
  return Told(chat.ChangeModel(ModelArgument(value)));
}

TurnEnd Quit(Chat&, Output&, const std::string&) {
  return {protocol::kExitDone, true};
}

constexpr std::array kCommands = {
    SlashCommand{"help", "", "this list", Help},
    SlashCommand{"show", "", "the conversation so far", Show},
    SlashCommand{"undo", "[N]", "take back the last turn, or the last N", Undo},
    SlashCommand{"retry", "", "another answer to the last message", Retry},
    SlashCommand{"more", "", "go on with the last answer (plain text)", More},
    SlashCommand{"reset", "", "begin a new conversation", Reset},
    SlashCommand{"system", "[TEXT]", "the system message; - removes it", System},
    SlashCommand{"set", "[NAME [VALUE]]", "all values, or one; \"default\" is what it was", Set},
    SlashCommand{"stats", "[on|off]", "tokens and speed, now or after every answer", Stats},
    SlashCommand{"save", "[FILE]", "write the conversation into a file; a session: its state",
                 Save},
    SlashCommand{"load", "FILE", "go on with a conversation from a file, or in another session",
                 Load},
    SlashCommand{"fork", "NAME", "copy the session", Fork},
    SlashCommand{"model", "[MODEL]", "the model, or another one from now on", Model},
    SlashCommand{"quit", "", "leave, as Ctrl-D does", Quit},
};

TurnEnd Help(Chat&, Output& output, const std::string&) {
  for (const SlashCommand& command : kCommands) {
    output.Write(Padded("/" + std::string(command.name) + " " + command.value, 30) + command.doc +
                 "\n");
  }
  for (const ChatValue& value : ChatValues()) {
    output.Write(Padded("/" + std::string(value.name) + " [VALUE]", 30) + value.doc + "\n");
  }
  output.Write(
      "\nA line that ends with \\ goes on in the next; \"\"\" begins and ends a text of several "
      "lines.\n//text is a message that begins with a slash. Ctrl-C stops an answer, Ctrl-D "
      "leaves.\n");
  return {};
}

std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const SlashCommand& command : kCommands) names.emplace_back(command.name);
  for (const ChatValue& value : ChatValues()) names.emplace_back(value.name);
  return names;
}

TurnEnd Unknown(const std::string& name) {
  std::string hint = "/help lists them; //" + name.substr(0, 20) + " is text that begins with /";
  const std::string nearest = cli::Nearest(name, AllNames());
  if (!nearest.empty()) hint = "did you mean /" + nearest + "? " + hint;
  return Refused("there is no command /" + name, hint);
}

std::vector<std::string> Files(const std::string& before, const std::string& begin) {
  std::string pattern;
  for (const char c : begin) {
    if (std::string_view("*?[\\").find(c) != std::string_view::npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  std::vector<std::string> files;
  glob_t found = {};
  if (::glob((pattern + "*").c_str(), GLOB_MARK, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) files.push_back(before + found.gl_pathv[i]);
  }
  ::globfree(&found);
  return files;
}

}  // namespace

bool IsSlashCommand(const std::string& line) {
  return line.starts_with('/') && !line.starts_with("//");
}

TurnEnd RunSlashCommand(const std::string& line, Chat& chat, Output& output) {
  const size_t end = std::min(line.find_first_of(" \t\n"), line.size());
  const std::string name = line.substr(1, end - 1);
  const size_t begin = line.find_first_not_of(" \t", end);
  std::string value = begin == std::string::npos ? "" : line.substr(begin);
  while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.pop_back();
  if (FindChatValue(name) != nullptr) return Set(chat, output, name + " " + value);
  for (const SlashCommand& command : kCommands) {
    if (name != command.name && !(name == "exit" && command.run == Quit)) continue;
    if (command.value[0] == '\0' && !value.empty()) {
      return Refused("/" + name + " takes no value", "/" + name);
    }
    return command.run(chat, output, value);
  }
  return Unknown(name);
}

std::vector<std::string> CompleteSlashCommand(const std::string& text) {
  if (!IsSlashCommand(text)) return {};
  for (const char* command : {"/load ", "/save ", "/model "}) {
    const std::string before = command;
    if (text.starts_with(before)) return Files(before, text.substr(before.size()));
  }
  std::vector<std::string> found;
  for (const std::string& name : AllNames()) {
    const std::string whole = "/" + name + " ";
    if (whole.starts_with(text)) found.push_back(whole);
  }
  return found;
}

}  // namespace mk::client
