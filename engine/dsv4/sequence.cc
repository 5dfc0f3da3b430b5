#include "engine/dsv4/sequence.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace mk::dsv4 {

Dsv4Sequence::Dsv4Sequence(const void* owner, std::shared_ptr<const Dsv4Shape> shape,
                           const SequenceOptions& options)
    : ModelSequence(owner, options), shape_(std::move(shape)), pages_(shape_->classes.size()) {
  size_t offset = 0;
  for (size_t l = 0; l < shape_->layers; ++l) {
    Offsets at;
    at.window = offset;
    offset += shape_->window_slots() * shape_->cached_row().bytes();
    if (shape_->ratio[l] > 0) {
      const size_t slots = shape_->compressor_slots(l);
      at.compressor = offset;
      offset += slots * 2 * shape_->compressor_width(l) * sizeof(float);
      at.index = offset;
      if (shape_->indexed(l)) offset += slots * 4 * shape_->index_dim * sizeof(float);
    }
    offsets_.push_back(at);
  }
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
  size_t bytes = rings_.size();
  for (size_t c = 0; c < pages_.size(); ++c) bytes += pages_[c].size() * PageBytes(c);
  return bytes;
}

void Dsv4Sequence::VisitPages(FunctionRef<void(const SharedPage&)> visit) const {
  visit(rings_);
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
  const size_t full = rows / kPageRows;
  // Pages behind the open one hold rows that a rewind has forgotten.
  pages.resize(std::min(pages.size(), full + 1));
  return ReservePages(pages, full, (end + kPageRows - 1) / kPageRows, PageBytes(ratio_class));
}

Status Dsv4Sequence::Reserve(size_t tokens) {
  try {
    if (Status own = rings_.Own(); !own) return own;
    for (size_t c = 0; c < pages_.size(); ++c) {
      if (Status room = ReserveClass(c, tokens); !room) return room;
    }
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the cache of a sequence",
                "end other sequences or shorten this one");
  }
  return {};
}

size_t Dsv4Sequence::rewindable() const {
  const size_t written = std::max(written_, length());
  const size_t gone = written - length();  // went back already
  return std::min(length(), kRewindTokens - std::min(kRewindTokens, gone));
}

Status Dsv4Sequence::Rewind(size_t length) {
  if (broken()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the sequence was left unusable by an earlier error and cannot go back",
                "start a new sequence");
  }
  const size_t now = this->length();
  if (length > now || now - length > rewindable()) {
    return Fail(ErrorCode::kInvalidArgument,
                "a sequence of " + std::to_string(now) + " tokens cannot go back to " +
                    std::to_string(length) + ", only by " + std::to_string(rewindable()),
                "go on from a copy that was made earlier");
  }
  written_ = std::max(written_, now);
  set_length(length);
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
