// Errors of the engine: a code, one line that says what is wrong, and one that says how to mend it.
//
// The engine knows nothing of the wire; the daemon maps these codes to the protocol's.
// Thread safety: values, no shared state.

#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace mk {

enum class ErrorCode {
  kInvalidArgument,   // the caller asked for something that cannot be: a bad option, a bad prompt
  kNotFound,          // a file or a name that does not exist
  kPermissionDenied,  // a file that may not be read or written
  kIo,                // the operating system failed a read, write, map or sync
  kCorrupt,           // a file whose bytes contradict its format, or changed under us
  kUnsupported,       // a well-formed file or request that this build cannot serve
  kIncompatible,      // two things that do not belong together: a model and a vocabulary
  kOutOfMemory,       // over the memory budget, or the system refused
  kContextOverflow,   // more tokens than the sequence may hold
  kCancelled,         // the caller's stop flag was seen
  kNumeric,           // a non-finite value in a forward pass
  kInternal,          // a broken invariant: a bug of ours
};

// Name of a code in lower_snake_case ("corrupt"). Never fails.
std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one line, what is wrong, with the file or value named
  std::string hint;     // one line, how to mend it; may be empty

  // "message" or "message; hint", for logs and tests.
  std::string ToString() const;
};

}  // namespace mk
