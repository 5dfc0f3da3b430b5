// The options of generating that `mk run` and `mk map` have in common.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/command_line.h"
#include "client/sampling_options.h"
#include "protocol/messages.h"

namespace mk::client {

// What CLI11 fills in before it becomes a request. It and `args` must live until Parse() is over.
class GenerationOptions {
 public:
  // `max_new`: tokens to generate where the command line does not say.
  explicit GenerationOptions(uint64_t max_new = 256) : max_new_(max_new) {}

  // --raw, --chat, --system, --no-thinking, --dialect
  void AddChat(CommandLine& line, protocol::RunArgs& args);
  // --system, --no-thinking, --dialect
  void AddTemplate(CommandLine& line, protocol::RunArgs& args, const std::string& implies);
  // --memory
  void AddMemory(CommandLine& line, protocol::RunArgs& args);
  // --save, --save-format
  void AddSave(CommandLine& line, protocol::RunArgs& args);
  // --precision, --no-chunked-prefill
  void AddChunks(CommandLine& line, protocol::RunArgs& args);
  // Those, --no-prefix-cache, --timeout
  void AddReading(CommandLine& line, protocol::RunArgs& args);
  // --max-new, --temp, --top-p ... --seed, --stop, those of SamplingOptions and of AddReading
  void AddSampling(CommandLine& line, protocol::RunArgs& args, const std::string& seed_doc);

  // Whether one of the options of a chat turn was given.
  bool chat(const protocol::RunArgs& args) const;
  // Completes `args`. Errors: usage, for options that exclude each other and for the timeout.
  protocol::Status Take(protocol::RunArgs& args) const;

 private:
  SamplingOptions sampling_;
  std::string timeout_;
  std::string system_;
  bool raw_ = false;
  bool chat_ = false;
  bool no_thinking_ = false;
  bool no_chunked_prefill_ = false;
  bool no_prefix_cache_ = false;
  uint64_t max_new_;
  uint64_t top_k_ = 0;
  uint64_t spec_ = 0;
  uint64_t spec_rosa_ = 0;
  uint64_t spec_shadow_ = 0;
  uint64_t save_format_ = 0;
  std::optional<uint64_t> seed_;
};

}  // namespace mk::client
