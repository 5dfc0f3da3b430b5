// A random model file of K3 with mixed experts, its table, and readers that fail as told.

#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>

#include "engine/format/mkim_file.h"
#include "engine/stream/streamed_experts.h"
#include "tests/reference/random_k3.h"
#include "tests/unit/base/temp_directory.h"

namespace mk::test {

class StreamFile {
 public:
  explicit StreamFile(reference::ExpertKind kind = reference::ExpertKind::kMixed) {
    reference::WriteRandomK3(path(), reference::AwkwardConfig(), kind, 5);
    file_ = *MkimFile::Open(path());
    const MkimConfig& config = file_->config();
    shape_.experts = config.n_experts;
    shape_.width = config.routed_hidden;
    shape_.inner = config.moe_inter;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
      shape_.in_layer.push_back(file_->Expert(layer, 0, ExpertPart::kGate) != nullptr);
    }
    codebook_.resize(256 * 16);
    if (const TensorEntry* entry = file_->FindTensor("vq_codebook"); entry != nullptr) {
      EXPECT_TRUE(file_->ReadF32(*entry, codebook_));
    }
  }

  std::string path() const { return directory_.Path("model.bin"); }
  const std::shared_ptr<const MkimFile>& file() const { return file_; }
  size_t top_k() const { return file_->config().top_k; }
  ExpertTable Table() const { return *ExpertTable::Create(*file_, shape_); }
  size_t first_layer() const {
    size_t layer = 0;
    while (!shape_.in_layer[layer]) ++layer;
    return layer;
  }
  const float* codebook() const { return codebook_.data(); }

  StreamOptions Options(double share = 0.2) const {
    StreamOptions options;
    const ExpertTable table = Table();
    options.budget = StreamedExperts::SmallestBudget(table, top_k()) +
                     static_cast<uint64_t>(share * static_cast<double>(table.all_values()));
    options.prefetch = {true, true, true, false, false};
    return options;
  }
  std::unique_ptr<StreamedExperts> Open(const StreamOptions& options,
                                        std::unique_ptr<DiskReader> reader = nullptr) const {
    auto store =
        StreamedExperts::Create(file_, Table(), top_k(), codebook(), options, std::move(reader));
    EXPECT_TRUE(store) << store.error().ToString();
    return std::move(*store);
  }

 private:
  TempDirectory directory_;
  std::shared_ptr<const MkimFile> file_;
  ExpertShape shape_;
  std::vector<float> codebook_;
};

// Reads with pread and changes what comes of it.
class FaultyReader final : public DiskReader {
 public:
  // What becomes of the n-th read, from 0 on.
  using Fault = std::function<void(size_t n, DiskDone& done)>;

  explicit FaultyReader(Fault fault) : inner_(*CreatePreadReader(8)), fault_(std::move(fault)) {}
  size_t depth() const override { return inner_->depth(); }
  void Submit(int fd, const DiskRead& read) override { inner_->Submit(fd, read); }
  void Wait(std::optional<StreamClock::time_point> until, std::vector<DiskDone>& done) override {
    const size_t before = done.size();
    inner_->Wait(until, done);
    for (size_t i = before; i < done.size(); ++i) fault_(count_++, done[i]);
  }
  void Wake() override { inner_->Wake(); }

 private:
  std::unique_ptr<DiskReader> inner_;
  Fault fault_;
  size_t count_ = 0;
};

}  // namespace mk::test
