// A line typed at a terminal: editing, recall of earlier ones, completion, pasted text of several
// lines (libedit).

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/error.h"

namespace mk::client {

// What the text before the cursor may become, whole.
using Complete = std::function<std::vector<std::string>(const std::string& text)>;

class LineEditor {
 public:
  enum class End {
    kLine,
    kEndOfInput,   // Ctrl-D on an empty line, or the terminal is gone
    kInterrupted,  // Ctrl-C
    kTerminated,   // SIGTERM
  };

  // On standard input and output, which are terminals. One at a time. While it lives, Ctrl-C and
  // SIGTERM do not end the process. Errors: kUnsupported when the terminal cannot be used.
  static protocol::Result<std::unique_ptr<LineEditor>> Create(Complete complete);
  virtual ~LineEditor() = default;

  // What Arrow-Up recalls first.
  virtual void Remember(const std::string& entry) = 0;
  // Reads a line, valid UTF-8 without its newline; pasted text may have newlines inside. Ctrl-Z
  // stops the process while it waits.
  virtual End Read(const std::string& prompt, std::string& line) = 0;
};

}  // namespace mk::client
