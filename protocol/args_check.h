// What the fields of a request must satisfy together. Errors: kBadRequest.

#pragma once

#include "protocol/error.h"
#include "protocol/messages.h"

namespace mk::protocol {

Status CheckArgs(const RunArgs& args);
Status CheckArgs(const ScoreArgs& args);
Status CheckArgs(const EvalArgs& args);
Status CheckArgs(const CompareArgs& args);
Status CheckArgs(const TokenizeArgs& args);
Status CheckArgs(const JobStartArgs& args);
Status CheckArgs(const JobRemoveArgs& args);
template <typename T>
Status CheckArgs(const T&) {
  return {};
}

}  // namespace mk::protocol
