// A model without arithmetic: its logits are a function of the sequence's tokens alone, and it
// remembers what every forward pass was given. It holds the precisions that it was prepared for.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk::daemon {

class FakeSequence : public Sequence {
 public:
  size_t length() const override { return tokens.size(); }
  size_t state_bytes() const override { return 64; }
  Result<std::unique_ptr<Sequence>> Clone() const override {
    auto copy = std::make_unique<FakeSequence>();
    copy->tokens = tokens;
    return std::unique_ptr<Sequence>(std::move(copy));
  }
  std::vector<int32_t> tokens;
};

struct SeenItem {
  const Sequence* sequence = nullptr;
  size_t tokens = 0;
};

class FakeModel : public Model {
 public:
  explicit FakeModel(size_t vocab = 100, Precision precision = Precision::kExact) {
    prepared_[static_cast<size_t>(precision)] = true;
    info_.architecture = "fake";
    info_.vocab = vocab;
    info_.state_bytes = 100;
    info_.bytes_per_token = 1;
  }
  const ModelInfo& info() const override { return info_; }
  ModelInfo& mutable_info() { return info_; }
  uint64_t resident_bytes() const override { return resident_bytes_; }
  void SetResidentBytes(uint64_t bytes) { resident_bytes_ = bytes; }
  bool prepared(Precision precision) const override {
    return prepared_[static_cast<size_t>(precision)];
  }
  Status Prepare(Precision precision, const LoadOptions& options) const override {
    if (prepared(precision)) return {};
    ++preparations;
    if (options.admit) {
      if (Status status = options.admit(precision_bytes); !status) return status;
    }
    if (on_prepare) {
      if (Status status = on_prepare(options); !status) return status;
    }
    resident_bytes_ += precision_bytes;
    prepared_[static_cast<size_t>(precision)] = true;
    return {};
  }

  uint64_t state_bytes(size_t tokens) const override {
    return info_.state_bytes + tokens * info_.bytes_per_token;
  }
  Result<TokenWork> Work(Precision) const override { return TokenWork{}; }
  Result<std::unique_ptr<Sequence>> NewSequence(const SequenceOptions& options) const override {
    if (!prepared(options.precision)) {
      return Fail(ErrorCode::kInvalidArgument, "the precision is not prepared");
    }
    return std::unique_ptr<Sequence>(std::make_unique<FakeSequence>());
  }

  Status Forward(Executor&, std::span<ForwardItem> items, ForwardObserver*) const override {
    std::vector<SeenItem> seen;
    for (const ForwardItem& item : items) {
      for (const int32_t token : item.tokens) {
        if (token < 0) return Fail(ErrorCode::kInvalidArgument, "token out of range");
        if (token == kNumericToken) return Fail(ErrorCode::kNumeric, "non-finite hidden state");
      }
      seen.push_back({item.sequence, item.tokens.size()});
    }
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    for (ForwardItem& item : items) {
      auto& tokens = static_cast<FakeSequence*>(item.sequence)->tokens;
      tokens.insert(tokens.end(), item.tokens.begin(), item.tokens.end());
      if (item.wanted == LogitsWanted::kLast && !item.logits.empty()) {
        // One number that depends on everything read so far.
        uint32_t hash = 17;
        for (const int32_t token : tokens) hash = hash * 31 + static_cast<uint32_t>(token);
        item.logits[0] = static_cast<float>(hash % info_.vocab);
      }
    }
    std::lock_guard lock(mutex_);
    steps_.push_back(std::move(seen));
    return {};
  }

  std::vector<std::vector<SeenItem>> steps() const {
    std::lock_guard lock(mutex_);
    return steps_;
  }

  static constexpr int32_t kNumericToken = 1'000'000;
  std::chrono::microseconds delay{0};
  // Of a preparation: the bytes that it adds, what happens meanwhile, how many there were.
  uint64_t precision_bytes = 50;
  std::function<Status(const LoadOptions&)> on_prepare;
  mutable std::atomic<int> preparations{0};

 private:
  mutable std::atomic<uint64_t> resident_bytes_{1000};
  mutable std::array<std::atomic<bool>, kPrecisions> prepared_{};
  ModelInfo info_;
  mutable std::mutex mutex_;
  mutable std::vector<std::vector<SeenItem>> steps_;
};

}  // namespace mk::daemon
