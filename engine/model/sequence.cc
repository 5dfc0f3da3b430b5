#include <string>

#include "engine/model/model.h"

namespace mk {

Status Sequence::Rewind(size_t length) {
  if (length == this->length()) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "a sequence of " + std::to_string(this->length()) + " tokens cannot go back to " +
                  std::to_string(length) + ": its state only goes forward",
              "go on from a copy that was made earlier");
}

Status Model::Lens(Executor&, Precision, std::span<const float>, const LensSink&) const {
  return Fail(ErrorCode::kUnsupported, "this model has no head to look through");
}

Status Model::SetStreamBudget(uint64_t) const {
  return Fail(ErrorCode::kInvalidArgument, "all experts of this model are in memory",
              "load it with streaming");
}

}  // namespace mk
