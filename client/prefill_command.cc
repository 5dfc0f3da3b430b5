// `mk prefill`: a run that only reads, and leaves what it read as a memory pack.

#include <unistd.h>

#include <array>
#include <cstdio>

#include "client/commands.h"
#include "client/generation_options.h"
#include "client/input.h"
#include "client/job.h"
#include "client/report.h"
#include "client/run_report.h"

namespace mk::client {
namespace {

struct PrefillSettings {
  AccessOptions access;
  protocol::RunArgs args;
  bool json = false;
};

protocol::Status Take(const TextSource& source, const GenerationOptions& generation,
                      protocol::RunArgs& args) {
  if (args.save.empty()) {
    return protocol::Fail(UsageError("there is no pack to make", "name one with --save PACK"));
  }
  if (protocol::Status taken = generation.Take(args); !taken) return taken;
  auto text = ReadText(source, "text");
  if (!text) return protocol::Fail(std::move(text.error()));
  if (text->empty()) return protocol::Fail(UsageError("the text is empty", "give some text"));
  args.prompt = std::move(*text);
  return {};
}

std::optional<int> ParsePrefill(const Command& command, int argc, char** argv,
                                PrefillSettings& settings) {
  TextSource source;
  GenerationOptions generation(0);
  CommandLine line(command);
  CLI::App& app = line.app();
  app.add_option("TEXT", source.argument, "Text to read; - or nothing: standard input");
  app.add_option("-f,--file", source.file, "Read the text from a file")->type_name("FILE");
  generation.AddChat(line, settings.args);
  generation.AddMemory(line, settings.args);
  generation.AddSave(line, settings.args);
  line.AddModel(settings.args.model);
  line.AddPriority(settings.args.priority);
  generation.AddReading(line, settings.args);
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  line.AddAccess(settings.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  source.has_argument = app.get_option("TEXT")->count() > 0;
  if (auto taken = Take(source, generation, settings.args); !taken) {
    return ReportError(taken.error());
  }
  return std::nullopt;
}

std::string PrefillText(const protocol::RunDone& done) {
  std::array<char, 128> read;
  std::snprintf(read.data(), read.size(), "read %llu tokens in %.2f s; ",
                static_cast<unsigned long long>(done.usage.prompt_tokens - done.usage.cached),
                done.timing.prefill_ms / 1e3);
  return read.data() + (done.saved ? SavedText(*done.saved) : std::string()) + "\n";
}

}  // namespace

int PrefillCommand(const Command& command, int argc, char** argv) {
  PrefillSettings settings;
  if (auto code = ParsePrefill(command, argc, argv, settings)) return *code;
  Output output(STDOUT_FILENO);
  auto session = OpenSession(settings.access);
  auto done = session ? RunJobFor<protocol::RunDone>(*session, std::move(settings.args), output,
                                                     !settings.json)
                      : protocol::Fail(session.error());
  if (done && !done->saved) {
    done = protocol::Fail(protocol::ErrorCode::kCancelled,
                          "nothing was saved: the text was not read to its end");
  }
  if (settings.json) output.Write(JsonLine(done ? RunDoneJson(*done) : ErrorToJson(done.error())));
  if (done && !settings.json) output.Write(PrefillText(*done));
  const int written = FinishOutput(output, protocol::kExitDone);
  if (!done) return ReportError(done.error());
  for (const std::string& warning : done->warnings) {
    std::fputs(("mk: warning: " + warning + "\n").c_str(), stderr);
  }
  return written;
}

}  // namespace mk::client
