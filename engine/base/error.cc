#include "engine/base/error.h"

namespace mk {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kIncompatible:
      return "incompatible";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kContextOverflow:
      return "context_overflow";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kNumeric:
      return "numeric";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

std::string Error::ToString() const {
  if (hint.empty()) return message;
  return message + "; " + hint;
}

}  // namespace mk
