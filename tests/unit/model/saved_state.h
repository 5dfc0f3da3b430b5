// A state in memory, and short ways to save and restore it in tests.

#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/state.h"

namespace mk::test {

struct SavedState {
  StateKey key;
  std::vector<StateSection> sections;
  std::vector<std::vector<std::byte>> bytes;

  bool operator==(const SavedState& other) const {
    return sections == other.sections && bytes == other.bytes && key.length == other.key.length &&
           key.rewindable == other.key.rewindable;
  }
};

// Both end the test on an error.
SavedState SaveState(const Model& model, const Sequence& sequence);
std::unique_ptr<Sequence> RestoreState(const Model& model, const SavedState& state);
// For tests of errors.
Result<std::unique_ptr<Sequence>> TryRestore(const Model& model, const SavedState& state);

}  // namespace mk::test
