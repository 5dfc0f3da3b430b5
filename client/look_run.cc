#include "client/look_run.h"

#include <unistd.h>

#include "client/progress.h"
#include "client/report.h"
#include "client/session.h"
#include "client/stream.h"

namespace mk::client {

using protocol::Fail;
using protocol::Status;

void LookRun::Add(CommandLine& line, const std::string& prompt_doc) {
  CLI::App& app = line.app();
  app.add_option("PROMPT", source_.argument, prompt_doc);
  app.add_option("-f,--file", source_.file, "Read the prompt from a file")->type_name("FILE");
  generation_.AddChat(line, args_);
  line.AddModel(args_.model);
  line.AddPriority(args_.priority);
  generation_.AddSampling(line, args_, "Seed of sampling (default: a new one)");
}

Status LookRun::Take(CommandLine& line) {
  source_.has_argument = line.app().get_option("PROMPT")->count() > 0;
  if (Status taken = generation_.Take(args_); !taken) return taken;
  auto text = ReadText(source_, "prompt");
  if (!text) return Fail(std::move(text.error()));
  if (text->empty()) return Fail(UsageError("the prompt is empty", "give some text"));
  args_.prompt = std::move(*text);
  return {};
}

protocol::Result<protocol::RunDone> LookRun::Run(
    const AccessOptions& access, Output& output, bool show_progress,
    const std::function<void(const protocol::Body&)>& on_reply) const {
  auto session = OpenSession(access);
  if (!session) return Fail(std::move(session.error()));
  ProgressLine progress(show_progress && IsFancyTerminal(STDERR_FILENO));
  const SignalWatch signals;
  StreamOptions stream;
  stream.timeout = milliseconds(args_.timeout_ms);
  stream.window = args_.window;
  auto end = RunStream(*session, args_, stream, output, signals, [&](const protocol::Body& body) {
    if (const auto* step = std::get_if<protocol::Progress>(&body)) progress.Show(*step);
    if (on_reply) on_reply(body);
    return Status();
  });
  progress.Clear();
  if (!end) return Fail(std::move(end.error()));
  if (end->output_closed) LeaveOnClosedPipe();
  if (end->interrupted || !end->body) return Fail(protocol::ErrorCode::kCancelled, "interrupted");
  if (auto* error = std::get_if<protocol::Error>(&*end->body)) return Fail(std::move(*error));
  if (auto* done = std::get_if<protocol::RunDone>(&*end->body)) return std::move(*done);
  return Fail(protocol::ErrorCode::kInternal, "the daemon gave another op's answer");
}

}  // namespace mk::client
