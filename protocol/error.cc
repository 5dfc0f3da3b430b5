#include "protocol/error.h"

#include <array>

namespace mk::protocol {
namespace {

using enum ErrorCode;

constexpr std::array kCodes = {
    ErrorCodeInfo{kBadRequest, "bad_request", kExitUsage, "the request is malformed"},
    ErrorCodeInfo{kUnsupportedVersion, "unsupported_version", kExitVersion,
                  "client and daemon share no protocol version"},
    ErrorCodeInfo{kUnsupported, "unsupported", kExitFailed, "this build or model cannot do that"},
    ErrorCodeInfo{kModelNotFound, "model_not_found", kExitNotFound, "no such model"},
    ErrorCodeInfo{kNotFound, "not_found", kExitNotFound, "no such file, request or name"},
    ErrorCodeInfo{kPermissionDenied, "permission_denied", kExitFailed,
                  "a file or socket that may not be used"},
    ErrorCodeInfo{kModelCorrupt, "model_corrupt", kExitFailed,
                  "the model file is damaged or is no model"},
    ErrorCodeInfo{kIncompatible, "incompatible", kExitFailed,
                  "two things that do not belong together"},
    ErrorCodeInfo{kIncompatiblePack, "incompatible_pack", kExitFailed,
                  "a saved state of another model"},
    ErrorCodeInfo{kPackCorrupt, "pack_corrupt", kExitFailed, "a saved state that is damaged"},
    ErrorCodeInfo{kContextOverflow, "context_overflow", kExitFailed,
                  "more tokens than the model or the memory can take"},
    ErrorCodeInfo{kBusy, "busy", kExitBusy, "the queue is full, or the thing is in use"},
    ErrorCodeInfo{kCancelled, "cancelled", kExitInterrupted, "cancelled"},
    ErrorCodeInfo{kTimeout, "timeout", kExitDeadline, "the deadline passed"},
    ErrorCodeInfo{kOutOfMemory, "out_of_memory", kExitFailed, "over the memory budget"},
    ErrorCodeInfo{kIoError, "io_error", kExitFailed, "reading or writing failed"},
    ErrorCodeInfo{kNumeric, "numeric", kExitFailed,
                  "a value that is not finite in the forward pass"},
    ErrorCodeInfo{kShuttingDown, "shutting_down", kExitUnreachable, "the daemon is leaving"},
    ErrorCodeInfo{kUnreachable, "unreachable", kExitUnreachable, "no daemon answers"},
    ErrorCodeInfo{kInternal, "internal", kExitFailed, "a bug in the daemon or the client"},
};

constexpr bool InOrder() {
  for (size_t i = 0; i < kCodes.size(); ++i) {
    if (static_cast<size_t>(kCodes[i].code) != i) return false;
  }
  return kCodes.size() == static_cast<size_t>(kInternal) + 1;
}
static_assert(InOrder(), "the table follows the enum");

}  // namespace

std::span<const ErrorCodeInfo> AllErrorCodes() {
  return kCodes;
}

const ErrorCodeInfo& InfoOf(ErrorCode code) {
  const auto index = static_cast<size_t>(code);
  return kCodes[index < kCodes.size() ? index : kCodes.size() - 1];
}

std::optional<ErrorCode> ErrorCodeFromName(std::string_view name) {
  for (const ErrorCodeInfo& info : kCodes) {
    if (info.name == name) return info.code;
  }
  return std::nullopt;
}

}  // namespace mk::protocol
