#include "engine/arch/model_sequence.h"

#include <string>

namespace mk {

Status ModelSequence::CheckRewind(size_t length) const {
  if (broken()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the sequence was left unusable by an earlier error and cannot go back",
                "start a new sequence");
  }
  if (length > length_ || length_ - length > rewindable()) {
    return Fail(ErrorCode::kInvalidArgument,
                "a sequence of " + std::to_string(length_) + " tokens cannot go back to " +
                    std::to_string(length) + ", only by " + std::to_string(rewindable()),
                "go on from a copy that was made earlier");
  }
  return {};
}

}  // namespace mk
