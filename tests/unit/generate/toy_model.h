// A model whose tokens are its state, for tests of generation.

#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/generate/generation.h"
#include "engine/model/model.h"

namespace mk {

using Ids = std::vector<int32_t>;
constexpr size_t kVocab = 300;

// Remembers its tokens; that is all the state there is.
class ToySequence final : public Sequence {
 public:
  size_t length() const override { return tokens.size(); }
  size_t rewindable() const override { return tokens.size() - std::min(tokens.size(), floor); }
  Status Rewind(size_t length) override {
    if (length < floor || length > tokens.size()) {
      return Fail(ErrorCode::kInvalidArgument, "cannot go back so far");
    }
    tokens.resize(length);
    return {};
  }
  size_t state_bytes() const override { return tokens.size() * sizeof(int32_t); }
  Result<std::unique_ptr<Sequence>> Clone() const override {
    auto copy = std::make_unique<ToySequence>();
    copy->tokens = tokens;
    copy->floor = tokens.size();
    return copy;
  }

  Ids tokens;
  size_t floor = 0;  // length before the last item if it was a draft, else after it
};

// Logits are a function of all tokens so far, unless a script says what comes next.
class ToyModel final : public Model {
 public:
  const ModelInfo& info() const override { return info_; }
  uint64_t resident_bytes() const override { return 0; }
  bool prepared(Precision) const override { return true; }
  Status Prepare(Precision, const LoadOptions&) const override { return {}; }
  uint64_t state_bytes(size_t) const override { return 0; }
  Result<TokenWork> Work(Precision) const override { return TokenWork{}; }
  Result<std::unique_ptr<Sequence>> NewSequence(const SequenceOptions&) const override {
    return std::make_unique<ToySequence>();
  }

  Status Forward(Executor&, std::span<ForwardItem> items, ForwardObserver*) const override {
    for (ForwardItem& item : items) {
      auto& sequence = static_cast<ToySequence&>(*item.sequence);
      if (item.tokens.empty()) return Fail(ErrorCode::kInvalidArgument, "no tokens");
      pieces.push_back(item.tokens.size());
      const size_t rows = item.wanted == LogitsWanted::kNone   ? 0
                          : item.wanted == LogitsWanted::kLast ? 1
                                                               : item.tokens.size();
      if (item.logits.size() != rows * kVocab) {
        return Fail(ErrorCode::kInvalidArgument, "bad span");
      }
      sequence.floor = sequence.tokens.size() + (item.draft ? 0 : item.tokens.size());
      for (size_t i = 0; i < item.tokens.size(); ++i) {
        sequence.tokens.push_back(item.tokens[i]);
        const size_t behind = item.tokens.size() - i;
        if (behind <= rows) {
          Fill(sequence.tokens, item.logits.subspan((rows - behind) * kVocab, kVocab));
        }
      }
    }
    return {};
  }

  void Fill(const Ids& tokens, std::span<float> logits) const {
    uint32_t hash = 2166136261u;
    const size_t from = order == 0 || tokens.size() < order ? 0 : tokens.size() - order;
    for (const int32_t token : std::span(tokens).subspan(from))
      hash = (hash ^ static_cast<uint32_t>(token)) * 16777619u;
    for (float& l : logits) {
      hash = hash * 1664525u + 1013904223u;
      l = static_cast<float>(hash >> 8) * 0x1p-22f;
    }
    if (nan_after != 0 && tokens.size() >= nan_after) {
      logits[7] = std::numeric_limits<float>::quiet_NaN();
    }
    if (tokens.size() >= script_start && tokens.size() - script_start < script.size()) {
      logits[static_cast<size_t>(script[tokens.size() - script_start])] = 100.0f;
    }
  }

  Ids script;  // tokens to pick from sequence length script_start on
  size_t script_start = 0;
  size_t nan_after = 0;
  size_t order = 0;                    // logits depend on so many last tokens only; 0: on all
  mutable std::vector<size_t> pieces;  // sizes of the items that were run

 private:
  ModelInfo info_;
};

inline std::string TextOf(const GenerationStep& step) {
  std::string text;
  for (const EmittedToken& token : step.tokens) {
    for (const TextPiece& piece : token.text) text += piece.text;
  }
  for (const TextPiece& piece : step.text) text += piece.text;
  return text;
}

}  // namespace mk
