// Commands that run a model to look at it.

#pragma once

#include <functional>
#include <string>

#include "client/access.h"
#include "client/command_line.h"
#include "client/generation_options.h"
#include "client/input.h"
#include "client/output.h"
#include "protocol/messages.h"

namespace mk::client {

// A prompt, a model and how the answer is sampled.
class LookRun {
 public:
  explicit LookRun(uint64_t max_new) : generation_(max_new) {}

  // The prompt, --file, those of a chat turn, --model, --priority and those of sampling.
  void Add(CommandLine& line, const std::string& prompt_doc);
  // After Parse(). Reads the prompt; errors: usage, those of ReadText.
  protocol::Status Take(CommandLine& line);
  bool given() const { return source_.given(); }

  protocol::RunArgs& args() { return args_; }
  const protocol::RunArgs& args() const { return args_; }
  // Runs it. `on_reply` gets every chunk. Errors: the daemon's, kCancelled after Ctrl-C.
  protocol::Result<protocol::RunDone> Run(
      const AccessOptions& access, Output& output, bool show_progress,
      const std::function<void(const protocol::Body&)>& on_reply = {}) const;

 private:
  TextSource source_;
  GenerationOptions generation_;
  protocol::RunArgs args_;
};

}  // namespace mk::client
