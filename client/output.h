// Standard output that never blocks the client: a pager that is not read from, or a stopped
// terminal, must not keep it from telling the daemon that it lives.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mk::client {

class Output {
 public:
  explicit Output(int fd);

  void Write(std::string_view text) { pending_ += text; }
  // Writes what can be written without waiting.
  void Pump();
  // Writes everything, however long that takes; false when the reader has left.
  bool Drain();

  bool pending() const { return written_ < pending_.size() && !closed_; }
  size_t pending_bytes() const { return pending() ? pending_.size() - written_ : 0; }
  // The reader has left (EPIPE), or the disk is full.
  bool closed() const { return closed_; }
  int error() const { return error_; }  // errno of what ended it
  bool is_terminal() const { return is_terminal_; }
  // The last byte that was given is a newline, or nothing was given.
  bool at_line_start() const { return pending_.empty() ? line_start_ : pending_.back() == '\n'; }
  int fd() const { return fd_; }

 private:
  const int fd_;
  const bool is_terminal_;
  const size_t piece_;  // bytes that a writable descriptor takes without blocking
  std::string pending_;
  size_t written_ = 0;
  bool line_start_ = true;
  bool closed_ = false;
  int error_ = 0;
};

}  // namespace mk::client
