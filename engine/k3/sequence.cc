#include "engine/k3/sequence.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace mk::k3 {

K3Sequence::K3Sequence(const void* owner, std::shared_ptr<const K3Shape> shape,
                       const SequenceOptions& options)
    : ModelSequence(owner, options),
      shape_(std::move(shape)),
      kv_row_(options.expanded_kv ? shape_->expanded_row() : shape_->latent_row()) {}

Result<std::unique_ptr<K3Sequence>> K3Sequence::Create(const void* owner,
                                                       std::shared_ptr<const K3Shape> shape,
                                                       const SequenceOptions& options) {
  std::unique_ptr<K3Sequence> sequence(new K3Sequence(owner, std::move(shape), options));
  const K3Shape& s = *sequence->shape_;
  Result<PageBuffer> kda =
      PageBuffer::Allocate(s.kda_layers * s.kda_state_floats() * sizeof(float));
  if (!kda) return Fail(kda.error());
  kda->MakeResident();
  sequence->kda_ = std::move(*kda);
  return sequence;
}

size_t K3Sequence::page_bytes() const {
  static_assert(kLatentTile == kPageTokens);
  const size_t layer =
      byte_kv() ? byte_shape().tile_bytes() : kPageTokens * kv_row_ * sizeof(float);
  return shape_->mla_layers * layer;
}

size_t K3Sequence::state_bytes() const {
  return kda_.size() + pages_.size() * page_bytes();
}

Result<K3Sequence::Page> K3Sequence::NewPage() const {
  Result<PageBuffer> memory = PageBuffer::Allocate(page_bytes());
  if (!memory) return Fail(memory.error());
  return std::make_shared<PageBuffer>(std::move(*memory));
}

Status K3Sequence::Reserve(size_t tokens) {
  if (shape_->mla_layers == 0) return {};
  const size_t pages = (length() + tokens + kPageTokens - 1) / kPageTokens;
  try {
    // A page that is shared and not full gets a copy of its own before it is written.
    const size_t open = length() / kPageTokens;
    if (open < pages_.size() && pages_[open].use_count() > 1) {
      Result<Page> copy = NewPage();
      if (!copy) return Fail(copy.error());
      std::memcpy((*copy)->data(), pages_[open]->data(), page_bytes());
      pages_[open] = std::move(*copy);
    }
    if (open < pages_.size()) {
      // use_count() orders nothing. Giving up a reference of our own does, against a clone that has
      // just given the page up after copying it.
      Page(pages_[open]).reset();
    }
    while (pages_.size() < pages) {
      Result<Page> page = NewPage();
      if (!page) return Fail(page.error());
      pages_.push_back(std::move(*page));
    }
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the cache of a sequence",
                "end other sequences or shorten this one");
  }
  return {};
}

Result<std::unique_ptr<Sequence>> K3Sequence::Clone() const {
  if (broken()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the sequence was left unusable by an earlier error and cannot be cloned",
                "start a new sequence");
  }
  try {
    Result<std::unique_ptr<K3Sequence>> copy = Create(owner(), shape_, options());
    if (!copy) return Fail(copy.error());
    K3Sequence& to = **copy;
    to.set_length(length());
    if (kda_.size() > 0) std::memcpy(to.kda_.data(), kda_.data(), kda_.size());
    const size_t used = std::min(pages_.size(), (length() + kPageTokens - 1) / kPageTokens);
    to.pages_.assign(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(used));
    return std::unique_ptr<Sequence>(std::move(*copy));
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a copy of a sequence",
                "end other sequences");
  }
}

float* K3Sequence::ConvHistory(size_t layer, size_t stream) {
  return kda_.floats().data() + layer * shape_->kda_state_floats() + stream * shape_->conv_floats();
}

float* K3Sequence::Matrix(size_t layer, size_t head) {
  return ConvHistory(layer, 3) + head * shape_->kda_dim * shape_->kda_dim;
}

}  // namespace mk::k3
