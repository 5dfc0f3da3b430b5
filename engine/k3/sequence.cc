#include "engine/k3/sequence.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/parallel/flush_denormals.h"

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
  return kda_.size() + pages_.size() * page_bytes() + draft_.bytes();
}

void K3Sequence::VisitPages(FunctionRef<void(const SharedPage&)> visit) const {
  visit(kda_);
  for (const SharedPage& page : pages_) visit(page);
  visit(draft_.state);
  visit(draft_.inputs());
}

Status K3Sequence::Reserve(size_t tokens, bool draft) {
  try {
    // A draft only reads the state before it, unless that has to be made up first.
    const bool taken = draft_taken();
    const size_t replay = taken ? 0 : length() - settled_;
    if (!draft || replay > 0) {
      if (Status own = (taken ? draft_.state : kda_).Own(); !own) return own;
    }
    if (draft) {
      if (taken) {
        if (Status own = kda_.Own(); !own) return own;
      }
      if (Status room = draft_.Reserve(*shape_, tokens, length() - settled_); !room) return room;
    }
    if (shape_->mla_layers == 0) return {};
    const size_t pages = (length() + tokens + kPageTokens - 1) / kPageTokens;
    return ReservePages(pages_, length() / kPageTokens, pages, page_bytes());
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the cache of a sequence",
                "end other sequences or shorten this one");
  }
}

void K3Sequence::TakeDraft() {
  std::swap(kda_, draft_.state);
  settled_ = length();
}

void K3Sequence::Begin(size_t tokens, bool draft) {
  if (draft_taken()) TakeDraft();
  replay_ = length() - settled_;
  settled_ = draft ? length() : length() + tokens;
  drafted_ = draft ? length() + tokens : 0;
}

Status K3Sequence::Rewind(size_t length) {
  if (Status good = CheckRewind(length); !good) return good;
  set_length(length);
  pages_.resize(std::min(pages_.size(), (length + kPageTokens - 1) / kPageTokens));
  return {};
}

Status K3Sequence::EndDraft() {
  if (draft_taken()) {
    TakeDraft();
  } else if (settled_ < length() && !broken()) {
    try {
      if (Status own = kda_.Own(); !own) return own;
    } catch (const std::bad_alloc&) {
      return Fail(ErrorCode::kOutOfMemory, "no memory for the state of a sequence",
                  "end other sequences");
    }
    for (size_t layer = 0; layer < shape_->kda_layers; ++layer) {
      ReplayWindows(layer, Before(layer).Window(0));
      ReplayMatrices(layer, Before(layer).Matrix(0));
    }
  }
  settled_ = length();
  drafted_ = 0;
  draft_ = {};
  return {};
}

void K3Sequence::ReplayWindows(size_t layer, float* out) const {
  const KdaState from = StateIn(draft_taken() ? draft_.state : kda_, layer);
  if (out != from.Window(0)) std::copy_n(from.Window(0), 3 * shape_->conv_floats(), out);
  if (draft_taken()) return;
  for (size_t part = 0; part < 3; ++part) {
    ReplayWindow(*shape_, DraftRows(layer), length() - settled_, part, 0, shape_->kda_width,
                 out + part * shape_->conv_floats());
  }
}

void K3Sequence::ReplayMatrices(size_t layer, float* out) const {
  const FlushDenormals flush;
  const KdaState from = StateIn(draft_taken() ? draft_.state : kda_, layer);
  const size_t floats = shape_->kda_dim * shape_->kda_dim;
  const size_t replay = draft_taken() ? 0 : length() - settled_;
  for (size_t h = 0; h < shape_->kda_heads; ++h) {
    if (replay > 0) {
      ReplayMatrix(*shape_, DraftRows(layer), replay, h, from.Matrix(h), out + h * floats);
    } else {
      std::copy_n(from.Matrix(h), floats, out + h * floats);
    }
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
    copy->settled_ = settled_;
    if (settled_ < length()) {
      copy->drafted_ = drafted_;
      copy->draft_ = draft_;
    }
    const size_t used = std::min(pages_.size(), (length() + kPageTokens - 1) / kPageTokens);
    copy->pages_.assign(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(used));
    return copy;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a copy of a sequence",
                "end other sequences");
  }
}

}  // namespace mk::k3
