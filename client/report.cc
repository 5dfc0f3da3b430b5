#include "client/report.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "client/json_format.h"

namespace mk::client {

int ReportError(const protocol::Error& error) {
  std::string text = "mk: " + error.message + "\n";
  if (!error.hint.empty()) text += "  hint: " + error.hint + "\n";
  std::fputs(text.c_str(), stderr);
  return protocol::ExitCodeOf(error.code);
}

int ReportError(const protocol::Error& error, bool json) {
  Output output(STDOUT_FILENO);
  if (json) output.Write(JsonLine(ErrorToJson(error)));
  FinishOutput(output, protocol::kExitDone);
  return ReportError(error);
}

int ReportUsage(std::string_view message, std::string_view hint) {
  return ReportError(UsageError(std::string(message), std::string(hint)));
}

protocol::Error UsageError(std::string message, std::string hint) {
  return {protocol::ErrorCode::kBadRequest, std::move(message), std::move(hint), {}};
}

void LeaveOnClosedPipe() {
  ::signal(SIGPIPE, SIG_DFL);
  ::raise(SIGPIPE);
  ::_exit(protocol::kExitClosedPipe);
}

int FinishOutput(Output& output, int code) {
  if (output.Drain()) return code;
  const int error = output.error();
  if (error == EPIPE) LeaveOnClosedPipe();
  const char* hint = error == EBADF ? "standard output is closed; send it to a file or to /dev/null"
                                    : "send it elsewhere, or free some space there";
  return ReportError({protocol::ErrorCode::kIoError,
                      std::string("cannot write the output: ") + std::strerror(error),
                      hint,
                      {}});
}

bool IsFancyTerminal(int fd) {
  if (::isatty(fd) != 1) return false;
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && no_color[0] != '\0') return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace mk::client
