// What `mk run` shows of a run: text, JSON, dumps, progress and statistics.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "client/answer_text.h"
#include "client/dump_file.h"
#include "client/json_format.h"
#include "client/look_output.h"
#include "client/output.h"
#include "client/progress.h"
#include "client/run_settings.h"

namespace mk::client {

class RunOutput {
 public:
  // Opens the files of dumps.
  static protocol::Result<std::unique_ptr<RunOutput>> Create(const RunSettings& options,
                                                             Output& output);

  // One accepted, event or chunk.
  protocol::Status Take(const protocol::Body& body);
  // The end. Returns the exit code.
  int Finish(const protocol::RunDone& done);
  // The end by an error, which is also printed. Returns the exit code.
  int Fail(const protocol::Error& error);

 private:
  RunOutput(const RunSettings& options, Output& output);

  protocol::Status TakeTensor(const protocol::TensorChunk& tensor);
  void TakeToken(const protocol::TokenChunk& token);
  void StreamJson(const protocol::Body& body);
  void ShowEnd(const protocol::RunDone& done);
  protocol::Status CommitDumps();
  void ShowSession(const protocol::RunDone& done) const;
  void ShowStats(const protocol::RunDone& done) const;

  const RunSettings& options_;
  Output& output_;
  const bool fancy_;  // stderr can be drawn on
  AnswerText answer_;
  ProgressLine progress_;
  std::optional<DumpFile> logits_;
  std::optional<DumpFile> hidden_;
  Json routes_ = Json::array();
  Json logprobs_ = Json::array();
  LookOutput looks_;
};

}  // namespace mk::client
