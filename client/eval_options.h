// What `mk eval` and `mk compare` have in common: which texts and tasks, and how they are read.

#pragma once

#include <string>

#include "client/command_line.h"
#include "protocol/messages.h"

namespace mk::client {

class EvalOptions {
 public:
  // --task, --text, --limit, --no-chunked-prefill.
  void Add(CommandLine& line);
  // All bundled ones where neither tasks nor texts were given.
  protocol::EvalItems Take() const;

 private:
  protocol::EvalItems items_;
  uint64_t limit_ = 0;
  bool no_chunked_prefill_ = false;
  protocol::StreamWish stream_;
};

// "/models/story-k3.bin" is "story-k3".
std::string ModelLabel(const std::string& path);

}  // namespace mk::client
