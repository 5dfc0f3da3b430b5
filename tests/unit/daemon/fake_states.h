// A model whose sequences are nothing but their tokens, in pages that copies share, and that can be
// saved and restored.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/state.h"
#include "fake_model.h"

namespace mk::daemon {

class PagedSequence : public Sequence {
 public:
  static constexpr size_t kFixedBytes = 5000;
  static constexpr size_t kPageBytes = 1000;  // of 64 tokens
  using Page = std::shared_ptr<std::vector<char>>;

  explicit PagedSequence(const SequenceOptions& options = {}) : options_(options) {}

  size_t length() const override { return tokens_.size(); }
  size_t state_bytes() const override { return kFixedBytes + pages_.size() * kPageBytes; }
  Result<std::unique_ptr<Sequence>> Clone() const override {
    auto copy = std::make_unique<PagedSequence>(options_);
    *copy = *this;
    return std::unique_ptr<Sequence>(std::move(copy));
  }

  // Reads tokens: what a copy shares and is written to becomes its own.
  void Read(const std::vector<int32_t>& tokens) {
    if (tokens.empty()) return;
    if (fixed_.use_count() > 1) fixed_ = New(kFixedBytes);
    if (tokens_.size() % 64 > 0 && pages_.back().use_count() > 1) pages_.back() = New(kPageBytes);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    while (pages_.size() * 64 < tokens_.size()) pages_.push_back(New(kPageBytes));
  }

  PagedSequence(const PagedSequence& other)
      : options_(other.options_),
        tokens_(other.tokens_),
        fixed_(other.fixed_),
        pages_(other.pages_) {}
  PagedSequence& operator=(const PagedSequence& other) {
    options_ = other.options_;
    tokens_ = other.tokens_;
    fixed_ = other.fixed_;
    pages_ = other.pages_;
    return *this;
  }

  const SequenceOptions& options() const { return options_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::vector<StatePage> pages() const {
    std::vector<StatePage> pages = {{fixed_.get(), kFixedBytes}};
    for (const Page& page : pages_) pages.push_back({page.get(), kPageBytes});
    return pages;
  }

 private:
  static Page New(size_t bytes) { return std::make_shared<std::vector<char>>(bytes); }

  SequenceOptions options_;
  std::vector<int32_t> tokens_;
  Page fixed_ = New(kFixedBytes);
  std::vector<Page> pages_;
};

class PagedModel : public FakeModel, public StateKeeper {
 public:
  explicit PagedModel(const std::string& fingerprint = std::string(32, 'a'), size_t block = 64)
      : FakeModel(120'000) {
    mutable_info().architecture = "k3";
    mutable_info().fingerprint = fingerprint;
    mutable_info().path = "/models/" + fingerprint.substr(0, 4) + ".bin";
    mutable_info().prompt_block = block;
  }

  uint64_t state_bytes(size_t tokens) const override {
    return PagedSequence::kFixedBytes + (tokens + 63) / 64 * PagedSequence::kPageBytes;
  }
  Result<std::unique_ptr<Sequence>> NewSequence(const SequenceOptions& options) const override {
    return std::unique_ptr<Sequence>(std::make_unique<PagedSequence>(options));
  }

  size_t OwnBytes(const Sequence&) const override { return 0; }
  std::vector<StatePage> Pages(const Sequence& sequence) const override {
    return static_cast<const PagedSequence&>(sequence).pages();
  }
  Result<StateKey> KeyOf(const Sequence& sequence) const override {
    return StateKey{static_cast<const PagedSequence&>(sequence).options(), sequence.length(), 0};
  }
  Result<std::vector<StateSection>> Sections(const StateKey& key) const override {
    return std::vector<StateSection>{
        {StateArray::kLatentRows, 0, StateType::kF32, {static_cast<uint32_t>(key.length), 1, 1}}};
  }
  Status Save(const Sequence& sequence, const StateKey& form,
              const StateSink& sink) const override {
    const auto& tokens = static_cast<const PagedSequence&>(sequence).tokens();
    const std::vector<float> rows(tokens.begin(), tokens.end());
    return sink((*Sections(form))[0], std::as_bytes(std::span(rows)));
  }
  Result<std::unique_ptr<Sequence>> Restore(const StateKey& key,
                                            const StateSource& source) const override {
    std::vector<float> rows(key.length);
    if (Status read = source((*Sections(key))[0], std::as_writable_bytes(std::span(rows))); !read) {
      return Fail(read.error());
    }
    auto sequence = std::make_unique<PagedSequence>(key.options);
    sequence->Read({rows.begin(), rows.end()});
    return std::unique_ptr<Sequence>(std::move(sequence));
  }
};

}  // namespace mk::daemon
