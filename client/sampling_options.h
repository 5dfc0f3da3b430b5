// The options of what is done to logits before a token is selected: biases, bans, penalties.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/command_line.h"
#include "protocol/messages.h"

namespace mk::client {

// What CLI11 fills in before it becomes a request. It and `args` must live until Parse() is over.
class SamplingOptions {
 public:
  // --typical-p, --logit-bias, --ban, --ban-text, --repetition-penalty ... --dry-compat
  void Add(CommandLine& line, protocol::RunArgs& args);
  // Completes `args`. Errors: usage.
  protocol::Status Take(protocol::RunArgs& args) const;

 private:
  void AddPenalties(CommandLine& line, protocol::ProcessingOptions& processing);
  void AddDry(CommandLine& line, protocol::ProcessingOptions& processing);

  std::vector<std::string> biases_;
  std::vector<std::string> banned_;
  std::vector<std::string> breakers_;
  bool no_breakers_ = false;
  bool no_dry_prompt_ = false;
  uint64_t penalty_window_ = 0;
  uint64_t dry_allowed_length_ = 0;  // 0: not given
  uint64_t dry_range_ = 0;
};

}  // namespace mk::client
