// `mk tokenize`, `mk detokenize`

#include <unistd.h>

#include "client/commands.h"
#include "client/input.h"
#include "client/json_format.h"
#include "client/report.h"

namespace mk::client {
namespace {

// A model may have to be loaded before its tokenizer answers.
constexpr milliseconds kTokenizerTimeout{600'000};

std::string IdsText(const protocol::TokenizeDone& done) {
  std::string text;
  for (int32_t id : done.ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text + "\n";
}

// "id<TAB>piece" lines; a piece is quoted as in JSON, so that blanks and newlines show.
std::string PiecesText(const protocol::TokenizeDone& done) {
  std::string text;
  for (size_t i = 0; i < done.ids.size(); ++i) {
    const std::string piece = i < done.pieces.size() ? done.pieces[i] : std::string();
    text += std::to_string(done.ids[i]) + "\t" + JsonLine(piece);
  }
  return text;
}

int TextError(const protocol::Error& error, bool json) {
  if (json) {
    Output output(STDOUT_FILENO);
    output.Write(JsonLine(ErrorToJson(error)));
    FinishOutput(output, protocol::kExitFailed);
  }
  return ReportError(error);
}

}  // namespace

int TokenizeCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  protocol::TokenizeArgs args;
  TextSource source;
  std::string system;
  bool json = false;
  bool pieces = false;
  CommandLine line(command);
  CLI::App& app = line.app();
  auto* argument = app.add_option("TEXT", source.argument, "Text; - or nothing: standard input");
  app.add_option("-f,--file", source.file, "Read the text from a file")->type_name("FILE");
  app.add_flag("--pieces", pieces, "One line per token, with its text");
  app.add_flag("--plain", args.plain, "Without the id that begins a text");
  app.add_flag("--chat", args.chat, "As the user's message of a chat turn");
  app.add_option("--system", system, "System message of the chat turn (implies --chat)");
  app.add_flag("--json", json, "One JSON object instead of text");
  line.AddModel(args.model);
  line.AddAccess(access, true);
  if (auto code = line.Parse(argc, argv)) return *code;
  source.has_argument = argument->count() > 0;
  if (!system.empty()) args.system = system;
  args.chat = args.chat || args.system.has_value();
  if (args.chat && args.plain)
    return ReportUsage("--plain excludes --chat and --system", "leave out one of them");
  MakeAbsolute(args.model);
  auto text = ReadText(source, "text");
  if (!text) return TextError(text.error(), json);
  args.text = std::move(*text);
  auto session = OpenSession(access);
  if (!session) return TextError(session.error(), json);
  auto done = AskFor<protocol::TokenizeDone>(*session, std::move(args), kTokenizerTimeout);
  if (!done) return TextError(done.error(), json);
  Output output(STDOUT_FILENO);
  output.Write(json ? JsonLine(ToJson(*done)) : pieces ? PiecesText(*done) : IdsText(*done));
  return FinishOutput(output, protocol::kExitDone);
}

int DetokenizeCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  protocol::DetokenizeArgs args;
  std::vector<std::string> words;
  bool json = false;
  CommandLine line(command);
  line.app()
      .add_option("IDS", words, "Token ids: 1,2,3 or 1 2 3 or @FILE (@-: standard input)")
      ->required();
  line.app().add_flag("--json", json, "One JSON object instead of text");
  line.AddModel(args.model);
  line.AddAccess(access, true);
  if (auto code = line.Parse(argc, argv)) return *code;
  MakeAbsolute(args.model);
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : " ") + word;
  auto ids = ReadIds(list);
  if (!ids) return TextError(ids.error(), json);
  args.ids = std::move(*ids);
  auto session = OpenSession(access);
  if (!session) return TextError(session.error(), json);
  auto done = AskFor<protocol::DetokenizeDone>(*session, std::move(args), kTokenizerTimeout);
  if (!done) return TextError(done.error(), json);
  Output output(STDOUT_FILENO);
  output.Write(json ? JsonLine(ToJson(*done)) : done->text);
  if (!json && output.is_terminal() && !output.at_line_start()) output.Write("\n");
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
