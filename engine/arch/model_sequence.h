// ModelSequence: what the sequences of all architectures have in common.

#pragma once

#include <cstddef>

#include "engine/base/result.h"
#include "engine/model/model.h"

namespace mk {

class ModelSequence : public Sequence {
 public:
  size_t length() const final { return length_; }

  // The model that made it.
  const void* owner() const { return owner_; }
  const SequenceOptions& options() const { return options_; }
  // Left half-way by a failed forward; nothing can be done with it any more.
  bool broken() const { return broken_; }
  void MarkBroken() { broken_ = true; }

  // Makes room for the next `tokens` positions; changes nothing that can be observed. kOutOfMemory.
  virtual Status Reserve(size_t tokens) = 0;
  // Counts the tokens of a finished forward.
  void Advance(size_t tokens) { length_ += tokens; }

 protected:
  ModelSequence(const void* owner, const SequenceOptions& options)
      : owner_(owner), options_(options) {}
  void set_length(size_t length) { length_ = length; }

 private:
  const void* owner_;
  SequenceOptions options_;
  size_t length_ = 0;
  bool broken_ = false;
};

}  // namespace mk
