// ModelSequence: what the sequences of all architectures have in common.

#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/model/model.h"
#include "engine/model/state.h"
#include "engine/parallel/function_ref.h"
#include "engine/parallel/shared_page.h"

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

  // Makes room for the next `tokens` positions, which may be a draft; changes nothing that can be
  // observed. kOutOfMemory.
  virtual Status Reserve(size_t tokens, bool draft) = 0;
  // A forward pass over these positions begins, for which there is room: the draft before it is
  // final.
  virtual void Begin(size_t tokens, bool draft) = 0;
  // What StateKey::rewindable says: tokens by which the state could go back without what drafts
  // keep.
  virtual size_t kept_rewindable() const { return 0; }
  // Every piece of memory that the state lies in.
  virtual void VisitPages(FunctionRef<void(const SharedPage&)> visit) const = 0;
  // Bytes of state_bytes() that no other sequence shares at this moment.
  size_t own_bytes() const;

  // ---- State as arrays (engine/model/state.h); sections are those of the sequence's own key ----
  virtual void ReadState(const StateSection& section, std::span<std::byte> out) const = 0;
  // Makes an empty sequence one of key.length tokens whose arrays are still to be written.
  // kOutOfMemory.
  virtual Status Grow(const StateKey& key) = 0;
  // Takes an array in. False, and nothing is written, when it holds values that no state has.
  virtual bool WriteState(const StateSection& section, std::span<const std::byte> in) = 0;

  // Counts the tokens of a finished forward.
  void Advance(size_t tokens) { length_ += tokens; }

 protected:
  ModelSequence(const void* owner, const SequenceOptions& options)
      : owner_(owner), options_(options) {}
  void set_length(size_t length) { length_ = length; }
  // Whether Rewind may go back to this length. kInvalidArgument.
  Status CheckRewind(size_t length) const;

 private:
  const void* owner_;
  SequenceOptions options_;
  size_t length_ = 0;
  bool broken_ = false;
};

// Tokens for which room is made when a draft has `tokens`: drafts grow and shrink with their luck.
inline size_t DraftCapacity(size_t tokens) {
  constexpr size_t kStep = 8;
  return std::min((tokens + kStep - 1) / kStep * kStep, kMaxDraftTokens);
}

inline size_t ModelSequence::own_bytes() const {
  size_t bytes = 0;
  VisitPages([&](const SharedPage& page) { bytes += page.own_bytes(); });
  return bytes;
}

}  // namespace mk
