#include "daemon/errors.h"

namespace mk::daemon {
namespace {

// No default: a new code of the engine does not compile until it has a place here.
protocol::ErrorCode CodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return protocol::ErrorCode::kBadRequest;
    case ErrorCode::kNotFound:
      return protocol::ErrorCode::kNotFound;
    case ErrorCode::kPermissionDenied:
      return protocol::ErrorCode::kPermissionDenied;
    case ErrorCode::kIo:
      return protocol::ErrorCode::kIoError;
    case ErrorCode::kCorrupt:
      return protocol::ErrorCode::kModelCorrupt;
    case ErrorCode::kUnsupported:
      return protocol::ErrorCode::kUnsupported;
    case ErrorCode::kIncompatible:
      return protocol::ErrorCode::kIncompatible;
    case ErrorCode::kOutOfMemory:
      return protocol::ErrorCode::kOutOfMemory;
    case ErrorCode::kContextOverflow:
      return protocol::ErrorCode::kContextOverflow;
    case ErrorCode::kCancelled:
      return protocol::ErrorCode::kCancelled;
    case ErrorCode::kNumeric:
      return protocol::ErrorCode::kNumeric;
    case ErrorCode::kInternal:
      return protocol::ErrorCode::kInternal;
  }
  return protocol::ErrorCode::kInternal;
}

}  // namespace

protocol::Error ToProtocol(const Error& error) {
  return {CodeOf(error.code), error.message, error.hint, {}};
}

protocol::Error ToModelError(const Error& error) {
  protocol::Error mapped = ToProtocol(error);
  if (mapped.code == protocol::ErrorCode::kNotFound) {
    mapped.code = protocol::ErrorCode::kModelNotFound;
  }
  return mapped;
}

protocol::Error ToPackError(const Error& error) {
  protocol::Error mapped = ToProtocol(error);
  if (error.code == ErrorCode::kCorrupt) mapped.code = protocol::ErrorCode::kPackCorrupt;
  if (error.code == ErrorCode::kIncompatible) {
    mapped.code = protocol::ErrorCode::kIncompatiblePack;
  }
  return mapped;
}

}  // namespace mk::daemon
