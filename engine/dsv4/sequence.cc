#include "engine/dsv4/sequence.h"

#include <algorithm>
#include <cstring>
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
  Result<PageBuffer> rings = PageBuffer::Allocate(sequence->shape_->ring_bytes());
  if (!rings) return Fail(rings.error());
  rings->MakeResident();
  sequence->rings_ = std::move(*rings);
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

Result<Dsv4Sequence::Page> Dsv4Sequence::NewPage(size_t ratio_class) const {
  Result<PageBuffer> memory = PageBuffer::Allocate(PageBytes(ratio_class));
  if (!memory) return Fail(memory.error());
  return std::make_shared<PageBuffer>(std::move(*memory));
}

Status Dsv4Sequence::ReserveClass(size_t ratio_class, size_t tokens) {
  std::vector<Page>& pages = pages_[ratio_class];
  const size_t ratio = shape_->classes[ratio_class].ratio;
  const size_t rows = length() / ratio;
  const size_t end = (length() + tokens) / ratio;
  if (end == rows) return {};
  // A page that is shared gets a copy of its own before it is written.
  const size_t open = rows / kPageRows;
  if (open < pages.size() && pages[open].use_count() > 1) {
    Result<Page> copy = NewPage(ratio_class);
    if (!copy) return Fail(copy.error());
    std::memcpy((*copy)->data(), pages[open]->data(), PageBytes(ratio_class));
    pages[open] = std::move(*copy);
  }
  // use_count() orders nothing. Giving up a reference of our own does, against a clone that has
  // just given the page up after copying it.
  if (open < pages.size()) Page(pages[open]).reset();
  // Pages behind it hold rows that a rewind has forgotten.
  pages.resize(std::min(pages.size(), open + 1));
  while (pages.size() * kPageRows < end) {
    Result<Page> page = NewPage(ratio_class);
    if (!page) return Fail(page.error());
    pages.push_back(std::move(*page));
  }
  return {};
}

Status Dsv4Sequence::Reserve(size_t tokens) {
  try {
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
    Result<std::unique_ptr<Dsv4Sequence>> copy = Create(owner(), shape_, options());
    if (!copy) return Fail(copy.error());
    Dsv4Sequence& to = **copy;
    to.set_length(length());
    to.written_ = written_;
    std::memcpy(to.rings_.data(), rings_.data(), rings_.size());
    for (size_t c = 0; c < pages_.size(); ++c) {
      const size_t rows = length() / shape_->classes[c].ratio;
      const size_t used = std::min(pages_[c].size(), (rows + kPageRows - 1) / kPageRows);
      to.pages_[c].assign(pages_[c].begin(), pages_[c].begin() + static_cast<std::ptrdiff_t>(used));
    }
    return std::unique_ptr<Sequence>(std::move(*copy));
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a copy of a sequence",
                "end other sequences");
  }
}

}  // namespace mk::dsv4
