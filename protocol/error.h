// The errors that travel between client and daemon: one closed list of codes, each with a name on
// the wire and the exit code that a process ends with.
//
// Thread safety: values, no shared state.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <variant>

namespace mk::protocol {

enum class ErrorCode {
  kBadRequest,          // malformed, out of range, contradictory, not UTF-8
  kUnsupportedVersion,  // client and daemon share no protocol version
  kUnsupported,         // well-formed, but this build or this model cannot do it
  kModelNotFound,       // no such model file or alias
  kNotFound,            // no such file, request or session
  kPermissionDenied,    // a file or socket that may not be used
  kModelCorrupt,        // a model file whose bytes contradict its format, or changed under us
  kIncompatible,        // two things that do not belong together: a model and a vocabulary
  kIncompatiblePack,    // a saved state of another model, or of another precision
  kPackCorrupt,         // a saved state that is torn, or not what was written
  kContextOverflow,     // more tokens than the model or the memory can take
  kBusy,                // the queue is full, or the thing is in use
  kCancelled,           // the client asked for it, or left
  kTimeout,             // the deadline passed
  kOutOfMemory,         // over the memory budget
  kIoError,             // the operating system failed a read or a write
  kNumeric,             // a non-finite value in a forward pass
  kShuttingDown,        // the daemon is leaving
  kUnreachable,         // client only: no daemon answers
  kInternal,            // a broken invariant: a bug
};

// What processes end with. 128 + SIGPIPE is what a closed pipe gives other Unix tools as well.
enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,  // no daemon, or it could not start
  kExitDegraded = 4,     // finished, but not with the whole model
  kExitVersion = 5,      // client and daemon do not understand each other
  kExitBusy = 6,
  kExitNotFound = 7,
  kExitDeadline = 124,
  kExitInterrupted = 130,
  kExitClosedPipe = 141,
};

struct ErrorCodeInfo {
  ErrorCode code;
  std::string_view name;  // on the wire: "bad_request"
  int exit_code;
  std::string_view text;  // one line for the manual
};

// Every code, in the order of the enum.
std::span<const ErrorCodeInfo> AllErrorCodes();
const ErrorCodeInfo& InfoOf(ErrorCode code);
inline std::string_view NameOf(ErrorCode code) {
  return InfoOf(code).name;
}
inline int ExitCodeOf(ErrorCode code) {
  return InfoOf(code).exit_code;
}
// The code of a name on the wire; nothing for a name that is not in the list.
std::optional<ErrorCode> ErrorCodeFromName(std::string_view name);

using Detail = std::variant<int64_t, std::string>;

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;                    // one line: what is wrong, with the thing named
  std::string hint;                       // one line: how to mend it; may be empty
  std::map<std::string, Detail> details;  // for programs: {"byte_offset": 12}

  bool operator==(const Error&) const = default;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> Fail(ErrorCode code, std::string message, std::string hint = {},
                                  std::map<std::string, Detail> details = {}) {
  return tl::unexpected<Error>(
      Error{code, std::move(message), std::move(hint), std::move(details)});
}
inline tl::unexpected<Error> Fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mk::protocol
