#include "client/output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace mk::client {
namespace {

// A terminal says that it is writable when it has room for this much; a pipe for PIPE_BUF.
constexpr size_t kTerminalPiece = 256;

}  // namespace

Output::Output(int fd)
    : fd_(fd),
      is_terminal_(::isatty(fd) == 1),
      piece_(is_terminal_ ? kTerminalPiece : size_t{PIPE_BUF}) {}

void Output::Pump() {
  while (pending()) {
    pollfd ready = {fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) return;
    const size_t size = std::min(piece_, pending_.size() - written_);
    const ssize_t wrote = ::write(fd_, pending_.data() + written_, size);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return;
      closed_ = true;
      error_ = errno;
      return;
    }
    written_ += static_cast<size_t>(wrote);
  }
  if (!pending_.empty() && !closed_) {
    line_start_ = pending_.back() == '\n';
    pending_.clear();
    written_ = 0;
  }
}

bool Output::Drain() {
  while (true) {
    Pump();
    if (closed_) return false;
    if (!pending()) return true;
    pollfd ready = {fd_, POLLOUT, 0};
    ::poll(&ready, 1, -1);
  }
}

}  // namespace mk::client
