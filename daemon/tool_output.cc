#include "daemon/tool_output.h"

#include <cstdio>

#include "daemon/errors.h"

namespace mk::daemon {

int PrintOut(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && written) return protocol::kExitDone;
  std::fprintf(stderr, "mk: the output could not be written\n");
  return protocol::kExitFailed;
}

int ReportFailure(const Error& error) {
  const protocol::Error wire = ToProtocol(error);
  std::fprintf(stderr, "mk: %s\n", wire.message.c_str());
  if (!wire.hint.empty()) std::fprintf(stderr, "  hint: %s\n", wire.hint.c_str());
  return protocol::ExitCodeOf(wire.code);
}

}  // namespace mk::daemon
