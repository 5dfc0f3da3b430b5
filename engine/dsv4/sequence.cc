#include "engine/dsv4/sequence.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace mk::dsv4 {

uint64_t DraftBytes(const Dsv4Shape& shape, size_t tokens) {
  return DraftCapacity(tokens) * shape.draft_token_bytes();
}

Dsv4Sequence::Dsv4Sequence(const void* owner, std::shared_ptr<const Dsv4Shape> shape,
                           const SequenceOptions& options)
    : ModelSequence(owner, options),
      shape_(std::move(shape)),
      offsets_(LayOut(0)),
      pages_(shape_->classes.size()) {}

std::vector<Dsv4Sequence::Offsets> Dsv4Sequence::LayOut(size_t draft_tokens) const {
  std::vector<Offsets> offsets(shape_->layers);
  size_t offset = 0;
  for (size_t l = 0; l < shape_->layers; ++l) {
    ForParts(l, [&](size_t Offsets::*part, size_t slots, size_t bytes) {
      offsets[l].*part = offset;
      offset += (draft_tokens > 0 ? draft_tokens : slots) * bytes;
    });
  }
  return offsets;
}

Result<std::unique_ptr<Dsv4Sequence>> Dsv4Sequence::Create(const void* owner,
                                                           std::shared_ptr<const Dsv4Shape> shape,
                                                           const SequenceOptions& options) {
  std::unique_ptr<Dsv4Sequence> sequence(new Dsv4Sequence(owner, std::move(shape), options));
  try {
    Result<SharedPage> rings = SharedPage::New(sequence->shape_->ring_bytes());
    if (!rings) return Fail(rings.error());
    rings->MakeResident();
    sequence->rings_ = std::move(*rings);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a new sequence", "end other sequences");
  }
  return sequence;
}

size_t Dsv4Sequence::PageBytes(size_t ratio_class) const {
  const RatioClass& c = shape_->classes[ratio_class];
  return c.layers * shape_->page_layer_bytes(c.indexed);
}

size_t Dsv4Sequence::state_bytes() const {
  size_t bytes = rings_.size() + draft_.rows.size();
  for (size_t c = 0; c < pages_.size(); ++c) bytes += pages_[c].size() * PageBytes(c);
  return bytes;
}

void Dsv4Sequence::VisitPages(FunctionRef<void(const SharedPage&)> visit) const {
  visit(rings_);
  visit(draft_.rows);
  for (const std::vector<SharedPage>& pages : pages_) {
    for (const SharedPage& page : pages) visit(page);
  }
}

Status Dsv4Sequence::ReserveClass(size_t ratio_class, size_t tokens) {
  std::vector<SharedPage>& pages = pages_[ratio_class];
  const size_t ratio = shape_->classes[ratio_class].ratio;
  const size_t rows = length() / ratio;
  const size_t end = (length() + tokens) / ratio;
  if (end == rows) return {};
  return ReservePages(pages, rows / kPageRows, (end + kPageRows - 1) / kPageRows,
                      PageBytes(ratio_class));
}

Status Dsv4Sequence::ReserveDraft(size_t tokens) {
  if (tokens <= draft_.capacity) return draft_.rows.Own();
  Draft larger;
  larger.capacity = DraftCapacity(tokens);
  larger.offsets = LayOut(larger.capacity);
  Result<SharedPage> made = SharedPage::New(DraftBytes(*shape_, larger.capacity));
  if (!made) return Fail(made.error());
  larger.rows = std::move(*made);
  // What there is of the present draft, until it is taken.
  for (size_t l = 0; settled_ < length() && l < shape_->layers; ++l) {
    ForParts(l, [&](size_t Offsets::*part, size_t, size_t bytes) {
      std::memcpy(larger.rows.data() + larger.offsets[l].*part, DraftRow(part, l, 0, bytes),
                  (length() - settled_) * bytes);
    });
  }
  draft_ = std::move(larger);
  return {};
}

Status Dsv4Sequence::Reserve(size_t tokens, bool draft) {
  try {
    if (!draft || settled_ < length()) {
      if (Status own = rings_.Own(); !own) return own;
    }
    if (draft) {
      if (Status room = ReserveDraft(tokens); !room) return room;
    }
    for (size_t c = 0; c < pages_.size(); ++c) {
      if (Status room = ReserveClass(c, tokens); !room) return room;
    }
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the cache of a sequence",
                "end other sequences or shorten this one");
  }
  return {};
}

void Dsv4Sequence::TakeDraft() {
  const size_t tokens = length() - settled_;
  for (size_t l = 0; l < shape_->layers; ++l) {
    ForParts(l, [&](size_t Offsets::*part, size_t slots, size_t bytes) {
      for (size_t t = tokens - std::min(tokens, slots); t < tokens; ++t) {
        std::memcpy(RingRow(part, l, (settled_ + t) % slots, bytes), DraftRow(part, l, t, bytes),
                    bytes);
      }
    });
  }
  settled_ = length();
}

void Dsv4Sequence::Begin(size_t tokens, bool draft) {
  if (settled_ < length()) TakeDraft();
  settled_ = draft ? length() : length() + tokens;
}

Status Dsv4Sequence::EndDraft() {
  if (settled_ < length() && !broken()) {
    try {
      if (Status own = rings_.Own(); !own) return own;
    } catch (const std::bad_alloc&) {
      return Fail(ErrorCode::kOutOfMemory, "no memory for the state of a sequence",
                  "end other sequences");
    }
    TakeDraft();
  }
  draft_ = {};
  return {};
}

size_t Dsv4Sequence::RewindableAt(size_t length) const {
  const size_t gone = std::max(written_, length) - length;  // went back already
  return std::min(length, kRewindTokens - std::min(kRewindTokens, gone));
}

size_t Dsv4Sequence::rewindable() const {
  const size_t settled = std::min(settled_, length());
  return length() - settled + RewindableAt(settled);
}

Status Dsv4Sequence::Rewind(size_t length) {
  if (Status good = CheckRewind(length); !good) return good;
  if (length < settled_) {
    written_ = std::max(written_, settled_);
    settled_ = length;
  }
  set_length(length);
  for (size_t c = 0; c < pages_.size(); ++c) {
    const size_t rows = length / shape_->classes[c].ratio;
    pages_[c].resize(std::min(pages_[c].size(), (rows + kPageRows - 1) / kPageRows));
  }
  return {};
}

Result<std::unique_ptr<Sequence>> Dsv4Sequence::Clone() const {
  if (broken()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the sequence was left unusable by an earlier error and cannot be cloned",
                "start a new sequence");
  }
  try {
    std::unique_ptr<Dsv4Sequence> copy(new Dsv4Sequence(owner(), shape_, options()));
    copy->set_length(length());
    copy->written_ = written_;
    copy->rings_ = rings_;
    copy->settled_ = settled_;
    if (settled_ < length()) copy->draft_ = draft_;
    for (size_t c = 0; c < pages_.size(); ++c) {
      const size_t rows = length() / shape_->classes[c].ratio;
      const size_t used = std::min(pages_[c].size(), (rows + kPageRows - 1) / kPageRows);
      copy->pages_[c].assign(pages_[c].begin(),
                             pages_[c].begin() + static_cast<std::ptrdiff_t>(used));
    }
    return copy;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a copy of a sequence",
                "end other sequences");
  }
}

}  // namespace mk::dsv4
