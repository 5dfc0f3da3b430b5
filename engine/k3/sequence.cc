#include "engine/k3/sequence.h"

#include <algorithm>
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
  try {
    Result<SharedPage> kda = SharedPage::New(s.kda_layers * s.kda_state_floats() * sizeof(float));
    if (!kda) return Fail(kda.error());
    kda->MakeResident();
    sequence->kda_ = std::move(*kda);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a new sequence", "end other sequences");
  }
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

void K3Sequence::VisitPages(FunctionRef<void(const SharedPage&)> visit) const {
  visit(kda_);
  for (const SharedPage& page : pages_) visit(page);
}

Status K3Sequence::Reserve(size_t tokens) {
  try {
    if (Status own = kda_.Own(); !own) return own;
    if (shape_->mla_layers == 0) return {};
    const size_t pages = (length() + tokens + kPageTokens - 1) / kPageTokens;
    return ReservePages(pages_, length() / kPageTokens, pages, page_bytes());
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the cache of a sequence",
                "end other sequences or shorten this one");
  }
}

Result<std::unique_ptr<Sequence>> K3Sequence::Clone() const {
  if (broken()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the sequence was left unusable by an earlier error and cannot be cloned",
                "start a new sequence");
  }
  try {
    std::unique_ptr<K3Sequence> copy(new K3Sequence(owner(), shape_, options()));
    copy->set_length(length());
    copy->kda_ = kda_;
    const size_t used = std::min(pages_.size(), (length() + kPageTokens - 1) / kPageTokens);
    copy->pages_.assign(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(used));
    return copy;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a copy of a sequence",
                "end other sequences");
  }
}

float* K3Sequence::ConvHistory(size_t layer, size_t stream) const {
  return kda_.floats().data() + layer * shape_->kda_state_floats() + stream * shape_->conv_floats();
}

float* K3Sequence::Matrix(size_t layer, size_t head) const {
  return ConvHistory(layer, 3) + head * shape_->kda_dim * shape_->kda_dim;
}

}  // namespace mk::k3
