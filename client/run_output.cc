#include "client/run_output.h"

#include <unistd.h>

#include <cstdio>

#include "client/logprob_text.h"
#include "client/report.h"
#include "client/run_report.h"

namespace mk::client {
namespace {

using protocol::Result;
using protocol::Status;

Result<std::optional<DumpFile>> OpenDump(const std::string& path) {
  if (path.empty()) return std::optional<DumpFile>();
  Result<DumpFile> file = DumpFile::Create(path);
  if (!file) return protocol::Fail(std::move(file.error()));
  return std::optional<DumpFile>(std::move(*file));
}

Json DumpJson(const DumpFile& file) {
  return {{"file", file.path()}, {"rows", file.rows()}, {"row_floats", file.row_bytes() / 4}};
}

const char* KindOf(const protocol::Body& body) {
  if (std::holds_alternative<protocol::TokenChunk>(body)) return "token";
  if (std::holds_alternative<protocol::RoutesChunk>(body)) return "routes";
  if (std::holds_alternative<protocol::LensChunk>(body)) return "lens";
  if (std::holds_alternative<protocol::HiddenStatsChunk>(body)) return "hidden_stats";
  return "event";
}

}  // namespace

RunOutput::RunOutput(const RunSettings& options, Output& output)
    : options_(options),
      output_(output),
      fancy_(IsFancyTerminal(STDERR_FILENO)),
      answer_(output, fancy_),
      progress_(fancy_ && options.format == RunFormat::kText),
      looks_(options.looks, options.format == RunFormat::kJson) {}

Result<std::unique_ptr<RunOutput>> RunOutput::Create(const RunSettings& options, Output& output) {
  std::unique_ptr<RunOutput> made(new RunOutput(options, output));
  if (Status good = made->looks_.Check(); !good) return protocol::Fail(std::move(good.error()));
  auto logits = OpenDump(options.dump_logits);
  if (!logits) return protocol::Fail(std::move(logits.error()));
  auto hidden = OpenDump(options.dump_hidden);
  if (!hidden) return protocol::Fail(std::move(hidden.error()));
  made->logits_ = std::move(*logits);
  made->hidden_ = std::move(*hidden);
  return made;
}

Status RunOutput::Take(const protocol::Body& body) {
  if (const auto* tensor = std::get_if<protocol::TensorChunk>(&body)) return TakeTensor(*tensor);
  const std::string shown = looks_.Take(body);
  if (options_.format == RunFormat::kStreamJson) {
    StreamJson(body);
    return {};
  }
  if (!shown.empty() && options_.format == RunFormat::kText) {
    progress_.Clear();
    output_.Write(shown);
  }
  if (const auto* token = std::get_if<protocol::TokenChunk>(&body)) {
    TakeToken(*token);
  } else if (const auto* progress = std::get_if<protocol::Progress>(&body)) {
    progress_.Show(*progress);
  } else if (const auto* routes = std::get_if<protocol::RoutesChunk>(&body)) {
    if (options_.routes) routes_.push_back(ToJson(*routes));
  }
  return {};
}

void RunOutput::TakeToken(const protocol::TokenChunk& token) {
  progress_.Clear();
  if (options_.format == RunFormat::kJson) {
    if (token.logprob) logprobs_.push_back(LogprobJson(token));
  } else if (token.logprob) {
    output_.Write(LogprobLine(token, Painter(IsFancyTerminal(STDOUT_FILENO))));
  } else if (!options_.looks.shows()) {
    answer_.Take(token);
  }
}

Status RunOutput::TakeTensor(const protocol::TensorChunk& tensor) {
  std::optional<DumpFile>& file = tensor.kind == "logits" ? logits_ : hidden_;
  return file ? file->Append(tensor) : Status();
}

void RunOutput::StreamJson(const protocol::Body& body) {
  Json line;
  if (const auto* accepted = std::get_if<protocol::Accepted>(&body)) {
    line = {{"type", "accepted"}, {"queue_position", accepted->queue_position}};
  } else if (const auto* progress = std::get_if<protocol::Progress>(&body)) {
    line = {{"type", "event"}};
    line.update(ToJson(*progress));
  } else if (const auto* token = std::get_if<protocol::TokenChunk>(&body)) {
    line = {{"type", "chunk"}, {"kind", KindOf(body)}};
    line.update(ToJson(*token));
  } else if (const auto* routes = std::get_if<protocol::RoutesChunk>(&body)) {
    if (!options_.routes) return;
    line = {{"type", "chunk"}, {"kind", KindOf(body)}};
    line.update(ToJson(*routes));
  } else if (const auto* lens = std::get_if<protocol::LensChunk>(&body)) {
    line = {{"type", "chunk"}, {"kind", KindOf(body)}};
    line.update(ToJson(*lens));
  } else if (const auto* stats = std::get_if<protocol::HiddenStatsChunk>(&body)) {
    line = {{"type", "chunk"}, {"kind", KindOf(body)}};
    line.update(ToJson(*stats));
  }
  output_.Write(JsonLine(line));
}

Status RunOutput::CommitDumps() {
  if (logits_) {
    if (Status status = logits_->Commit(); !status) return status;
  }
  return hidden_ ? hidden_->Commit() : Status();
}

void RunOutput::ShowStats(const protocol::RunDone& done) const {
  if (options_.format != RunFormat::kText || (!options_.stats && !fancy_)) return;
  std::fputs(("[" + RunStatsText(done) + "]\n").c_str(), stderr);
}

// A name that was mistyped makes a session: that is told.
void RunOutput::ShowSession(const protocol::RunDone& done) const {
  if (!done.session || !done.session->created) return;
  if (options_.format != RunFormat::kText || !fancy_) return;
  std::fputs(("[session " + done.session->name + " is new]\n").c_str(), stderr);
}

void RunOutput::ShowEnd(const protocol::RunDone& done) {
  if (options_.looks.shows()) {
    output_.Write(looks_.End(done));
  } else if (!options_.args.logprobs) {
    output_.Write(done.rest);
  }
  if (output_.is_terminal() && !output_.at_line_start()) output_.Write("\n");
}

int RunOutput::Finish(const protocol::RunDone& done) {
  progress_.Clear();
  answer_.EndReasoning();
  if (Status committed = CommitDumps(); !committed) return Fail(committed.error());
  if (Status written = looks_.WriteFiles(done); !written) return Fail(written.error());
  if (options_.format == RunFormat::kText) {
    ShowEnd(done);
  } else {
    Json json = options_.format == RunFormat::kStreamJson ? Json{{"type", "done"}} : Json::object();
    json.update(RunDoneJson(done));
    if (options_.format == RunFormat::kJson && options_.routes) json["routes"] = routes_;
    if (options_.format == RunFormat::kJson && options_.args.logprobs) json["logprobs"] = logprobs_;
    if (options_.format == RunFormat::kJson) looks_.AddTo(json);
    if (logits_) json["logits"] = DumpJson(*logits_);
    if (hidden_) json["hidden"] = DumpJson(*hidden_);
    output_.Write(JsonLine(json));
  }
  if (!output_.Drain()) return FinishOutput(output_, protocol::kExitFailed);
  for (const std::string& warning : done.warnings) {
    std::fputs(("mk: warning: " + warning + "\n").c_str(), stderr);
  }
  ShowSession(done);
  ShowStats(done);
  if (done.trust.degraded) {
    std::fputs("mk: the answer is degraded: parts of the model were not used (see --json, trust)\n",
               stderr);
    return options_.allow_degraded ? protocol::kExitDone : protocol::kExitDegraded;
  }
  return protocol::kExitDone;
}

int RunOutput::Fail(const protocol::Error& error) {
  progress_.Clear();
  answer_.EndReasoning();
  if (options_.format != RunFormat::kText) {
    Json json =
        options_.format == RunFormat::kStreamJson ? Json{{"type", "error"}} : Json::object();
    json.update(ErrorToJson(error));
    output_.Write(JsonLine(json));
  } else if (output_.is_terminal() && !output_.at_line_start()) {
    output_.Write("\n");
  }
  FinishOutput(output_, protocol::kExitFailed);
  return ReportError(error);
}

}  // namespace mk::client
