#include "engine/shadow/shadow_builder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/file.h"
#include "engine/format/digest.h"
#include "engine/kernels/vq1_search.h"
#include "engine/shadow/codebook_trainer.h"
#include "engine/shadow/expert_encoder.h"
#include "engine/shadow/expert_values.h"
#include "engine/shadow/partial_shadows.h"
#include "engine/shadow/shadow_checkpoint.h"
#include "engine/shadow/shadow_file.h"
#include "engine/shadow/vector_sample.h"

namespace mk {
namespace {

using Clock = std::chrono::steady_clock;

// Experts in work at a time take at most so many bytes as floats.
constexpr uint64_t kBatchBytes = uint64_t{256} << 20;
// Layers that the sample of version 1 comes from, and experts of every layer for version 2.
constexpr size_t kSampleLayers = 4;
constexpr size_t kSampleExperts = 8;
constexpr ExpertPart kParts[] = {ExpertPart::kGate, ExpertPart::kDown, ExpertPart::kUp};

struct ExpertId {
  uint32_t layer = 0;
  uint32_t expert = 0;
};

struct EncodedLayer {
  std::vector<uint64_t> digests;   // [E]
  std::vector<Energies> energies;  // [E][3]
};

class ShadowBuild {
 public:
  ShadowBuild(const ShadowOptions& options, std::shared_ptr<const MkimFile> model)
      : options_(options),
        model_(std::move(model)),
        shape_(ExpertShapeOf(*model_)),
        target_(options.out.empty() ? ShadowPathFor(model_->path()) : options.out) {}

  Result<ShadowReport> Run();

 private:
  Status Prepare();
  Status CheckTarget() const;
  Status GoOn();
  bool Restore(const ShadowCheckpoint& checkpoint);
  Status Train();
  std::vector<ExpertId> Sampled() const;
  Result<VectorSample> TakeSample();
  Status TrainStage(size_t stage, std::vector<float>& rest);
  Status EncodeExpert(size_t row, size_t expert, const ExpertEncoder& encoder,
                      ExpertEncoder::Buffers& buffers, EncodedLayer& layer) const;
  Status EncodeLayer(size_t row);
  void Take(size_t row, const EncodedLayer& layer);
  Status Save();
  Result<ShadowReport> Finish();
  uint64_t BytesOf(const ExpertId& id) const;
  void AskFor(uint32_t layer, size_t first, size_t count) const;
  // Experts that are in memory as floats at a time.
  size_t BatchSize() const;
  Status Tell(std::string_view stage, uint64_t done, uint64_t total) const;

  const ShadowOptions& options_;
  const std::shared_ptr<const MkimFile> model_;
  const ExpertShape shape_;
  const std::string target_;
  const Clock::time_point began_ = Clock::now();
  std::unique_ptr<ThreadPool> pool_;
  std::optional<ExpertValues> values_;
  std::optional<PartialShadows> partial_;
  ShadowHead head_;  // codebooks before the gain
  ShadowCheckpoint progress_;
  uint64_t resumed_ = 0;
  uint64_t read_ = 0;  // bytes of experts that were encoded
  uint64_t expert_bytes_ = 0;
  bool saved_ = false;  // somebody counts on what is kept
  Clock::time_point saved_at_ = Clock::now();
};

Status ShadowBuild::Tell(std::string_view stage, uint64_t done, uint64_t total) const {
  if (!options_.progress || options_.progress({stage, done, total})) return {};
  return Fail(ErrorCode::kCancelled, "making the shadows was cancelled");
}

uint64_t ShadowBuild::BytesOf(const ExpertId& id) const {
  uint64_t bytes = 0;
  for (const ExpertPart part : kParts) bytes += model_->Expert(id.layer, id.expert, part)->size;
  return bytes;
}

// The system may read the experts that come next while others are encoded.
void ShadowBuild::AskFor(uint32_t layer, size_t first, size_t count) const {
  for (size_t e = first; e < std::min(first + count, shape_.experts); ++e) {
    for (const ExpertPart part : kParts) {
      const TensorEntry& entry = *model_->Expert(layer, static_cast<uint32_t>(e), part);
      ReadAhead(model_->fd(), entry.offset, entry.size);
    }
  }
}

size_t ShadowBuild::BatchSize() const {
  const uint64_t floats = 3 * shape_.inner * shape_.width;
  const uint64_t fits = kBatchBytes / (floats * sizeof(float));
  return std::clamp<uint64_t>(fits, 1, 8 * pool_->size());
}

// A file of that name is replaced if it is one of shadows.
Status ShadowBuild::CheckTarget() const {
  const Result<OpenedFile> there = OpenForReading(target_);
  if (!there) {
    return there.error().code == ErrorCode::kNotFound ? Status() : Fail(there.error());
  }
  const Result<ShadowFile> shadows = ShadowFile::Open(target_);
  std::string magic(std::min<uint64_t>(4, there->identity.size), '\0');
  Status read = ReadAt(there->fd.get(), 0, std::as_writable_bytes(std::span(magic)), target_);
  if (!read) return read;
  if (shadows || magic == "MKSH") return {};
  return Fail(ErrorCode::kInvalidArgument,
              target_ + " is no file of shadows and will not be replaced",
              "give another name with --out");
}

Status ShadowBuild::Prepare() {
  ShadowInfo& info = head_.info;
  info.version = options_.version;
  info.stages = options_.stages;
  info.layers = ExpertLayers(shape_);
  if (info.layers.empty()) {
    return Fail(ErrorCode::kInvalidArgument, model_->path() + " has no routed experts",
                "only models with experts have shadows");
  }
  if (shape_.width % kVq1Group != 0 || shape_.inner % kVq1Group != 0) {
    return Fail(ErrorCode::kUnsupported,
                model_->path() + ": sizes of its experts are no multiples of 16",
                "shadows need them to be");
  }
  info.experts = static_cast<uint32_t>(shape_.experts);
  info.groups = static_cast<uint32_t>(shape_.inner * shape_.width / kVq1Group);
  if (Status good = CheckTarget(); !good) return good;
  Result<std::string> fingerprint = model_->Fingerprint();
  if (!fingerprint) return Fail(fingerprint.error());
  progress_.version = info.version;
  progress_.stages = info.stages;
  progress_.fingerprint = *fingerprint;
  if (info.version >= 2) {
    info.fingerprint = std::move(*fingerprint);
    head_.digests.resize(info.layers.size() * info.experts);
  }
  for (const uint32_t layer : info.layers) {
    for (uint32_t e = 0; e < info.experts; ++e) expert_bytes_ += BytesOf({layer, e});
  }
  Result<std::unique_ptr<ThreadPool>> pool =
      ThreadPool::Create(static_cast<size_t>(std::max(1, options_.threads)));
  if (!pool) return Fail(pool.error());
  pool_ = std::move(*pool);
  Result<ExpertValues> values = ExpertValues::Open(*model_);
  if (!values) return Fail(values.error());
  values_ = std::move(*values);
  Result<PartialShadows> partial = PartialShadows::Open(target_);
  if (!partial) return Fail(partial.error());
  partial_.emplace(std::move(*partial));
  return {};
}

// Takes over what an earlier run has done. False: it is of no use.
bool ShadowBuild::Restore(const ShadowCheckpoint& checkpoint) {
  const ShadowInfo& info = head_.info;
  const bool same = checkpoint.fingerprint == progress_.fingerprint &&
                    checkpoint.version == info.version && checkpoint.stages == info.stages &&
                    checkpoint.layers <= info.layers.size();
  const Result<uint64_t> size = partial_->size();
  if (!same || !size || *size != info.file_bytes()) return false;
  head_.codebooks.resize(info.codebook_floats());
  const auto codebooks = std::as_writable_bytes(std::span(head_.codebooks));
  if (!partial_->Read(info.codebook_offset(), codebooks)) return false;
  uint64_t digest = Xxh3Of(codebooks);
  std::vector<std::byte> bytes(info.expert_bytes());
  for (size_t place = 0; place < checkpoint.layers * info.experts; ++place) {
    if (!partial_->Read(info.data_offset() + place * bytes.size(), bytes)) return false;
    const uint64_t own = Xxh3Of(bytes);
    digest = CombineDigests(digest, own);
    if (!head_.digests.empty()) head_.digests[place] = own;
  }
  if (digest != checkpoint.digest) return false;
  progress_ = checkpoint;
  return true;
}

// Goes on where an earlier run was, or begins.
Status ShadowBuild::GoOn() {
  const std::optional<ShadowCheckpoint> earlier = ShadowCheckpoint::Decode(options_.checkpoint);
  if (earlier && Restore(*earlier)) {
    saved_ = true;
    resumed_ = progress_.layers;
    for (size_t row = 0; row < progress_.layers; ++row) {
      for (uint32_t e = 0; e < head_.info.experts; ++e) {
        read_ += BytesOf({head_.info.layers[row], e});
      }
    }
    return {};
  }
  if (Status begun = partial_->Begin(head_.info.file_bytes()); !begun) return begun;
  return Train();
}

// Experts that the sample is taken from, in the order in which they are offered.
std::vector<ExpertId> ShadowBuild::Sampled() const {
  const ShadowInfo& info = head_.info;
  const bool first = info.version == 1;
  const size_t layers = first ? std::min(kSampleLayers, info.layers.size()) : info.layers.size();
  // So many that the sample is filled, and if that is only one, still some.
  const size_t wanted = options_.sample / (layers * 3 * info.groups) + 1;
  const size_t experts =
      first ? info.experts : std::min<size_t>(std::max(wanted, kSampleExperts), info.experts);
  std::vector<ExpertId> ids;
  for (size_t row = 0; row < layers; ++row) {
    for (size_t i = 0; i < experts; ++i) {
      ids.push_back({info.layers[row], static_cast<uint32_t>(i * info.experts / experts)});
    }
  }
  return ids;
}

Result<VectorSample> ShadowBuild::TakeSample() {
  const std::vector<ExpertId> ids = Sampled();
  const size_t floats = shape_.inner * shape_.width;
  const size_t batch = std::min(BatchSize(), ids.size());
  std::vector<float> weights(batch * 3 * floats);
  std::vector<std::vector<std::byte>> raw(pool_->size());
  VectorSample sample(options_.sample, kShadowSeed);
  uint64_t total = 0;
  for (const ExpertId& id : ids) total += BytesOf(id);
  uint64_t done = 0;
  for (size_t first = 0; first < ids.size(); first += batch) {
    if (Status told = Tell("sample", done, total); !told) return Fail(told.error());
    const size_t count = std::min(batch, ids.size() - first);
    const Status read = pool_->ParallelFor(count * 3, [&](size_t task, size_t worker) {
      const ExpertId& id = ids[first + task / 3];
      return values_->Read(*model_->Expert(id.layer, id.expert, kParts[task % 3]), raw[worker],
                           std::span(weights).subspan(task * floats, floats));
    });
    if (!read) return Fail(read.error());
    sample.Offer(std::span(weights).first(count * 3 * floats));
    for (size_t i = 0; i < count; ++i) done += BytesOf(ids[first + i]);
  }
  return sample;
}

// Trains the codebook of a stage on `rest`, and takes from it what the codebook gives.
Status ShadowBuild::TrainStage(size_t stage, std::vector<float>& rest) {
  const size_t stages = head_.info.stages;
  Result<TrainedCodebook> trained = TrainCodebook(rest, kShadowSeed, *pool_, [&](size_t round) {
    return Tell("train", stage * kTrainingRounds + round, stages * kTrainingRounds).has_value();
  });
  if (!trained) return Fail(trained.error());
  const std::span<const float> entries = trained->entries();
  std::ranges::copy(entries,
                    head_.codebooks.begin() + static_cast<ptrdiff_t>(stage * kVq1CodebookSize));
  std::vector<uint8_t> nearest(rest.size() / kVq1Group);
  FindNearestVq1(trained->codebook.floats().data(), rest.data(), nearest.size(), nearest.data(),
                 nullptr);
  SubtractEntries(entries, nearest, rest);
  return {};
}

Status ShadowBuild::Train() {
  ShadowInfo& info = head_.info;
  Result<VectorSample> sample = TakeSample();
  if (!sample) return Fail(sample.error());
  head_.codebooks.resize(info.codebook_floats());
  std::vector<float> rest(sample->values().begin(), sample->values().end());
  for (size_t stage = 0; stage < info.stages; ++stage) {
    if (Status trained = TrainStage(stage, rest); !trained) return trained;
  }
  const auto codebooks = std::as_bytes(std::span(head_.codebooks));
  progress_.digest = Xxh3Of(codebooks);
  return partial_->Write(info.codebook_offset(), codebooks);
}

Status ShadowBuild::EncodeExpert(size_t row, size_t expert, const ExpertEncoder& encoder,
                                 ExpertEncoder::Buffers& buffers, EncodedLayer& layer) const {
  const ShadowInfo& info = head_.info;
  buffers.bytes.resize(info.expert_bytes());
  const std::span<std::byte> bytes(buffers.bytes);
  for (size_t part = 0; part < 3; ++part) {
    buffers.values.resize(shape_.inner * shape_.width);
    const TensorEntry& entry =
        *model_->Expert(info.layers[row], static_cast<uint32_t>(expert), kParts[part]);
    if (Status read = values_->Read(entry, buffers.raw, buffers.values); !read) return read;
    layer.energies[expert * 3 + part] =
        encoder.Encode(buffers, bytes.subspan(part * info.matrix_bytes(), info.matrix_bytes()));
  }
  layer.digests[expert] = Xxh3Of(bytes);
  const uint64_t place = uint64_t{row} * info.experts + expert;
  return partial_->Write(info.data_offset() + place * bytes.size(), bytes);
}

Status ShadowBuild::EncodeLayer(size_t row) {
  const ShadowInfo& info = head_.info;
  Result<ExpertEncoder> encoder = ExpertEncoder::Create(head_.codebooks, info.stages);
  if (!encoder) return Fail(encoder.error());
  const size_t batch = std::min<size_t>(BatchSize(), info.experts);
  std::vector<ExpertEncoder::Buffers> buffers(pool_->size());
  EncodedLayer layer{std::vector<uint64_t>(info.experts), std::vector<Energies>(info.experts * 3)};
  for (size_t first = 0; first < info.experts; first += batch) {
    if (Status told = Tell("shadow", read_, expert_bytes_); !told) return told;
    const size_t count = std::min<size_t>(batch, info.experts - first);
    AskFor(info.layers[row], first + count, batch);
    Status encoded = pool_->ParallelFor(count, [&](size_t task, size_t worker) {
      return EncodeExpert(row, first + task, *encoder, buffers[worker], layer);
    });
    if (!encoded) return encoded;
    for (size_t e = first; e < first + count; ++e) {
      read_ += BytesOf({info.layers[row], static_cast<uint32_t>(e)});
    }
  }
  Take(row, layer);
  return {};
}

// In the order of the experts, whoever has encoded them.
void ShadowBuild::Take(size_t row, const EncodedLayer& layer) {
  for (const Energies& matrix : layer.energies) {
    progress_.error_sum += matrix.relative_error();
    progress_.weight_energy += matrix.weights;
    progress_.shadow_energy += matrix.shadows;
  }
  for (size_t e = 0; e < layer.digests.size(); ++e) {
    progress_.digest = CombineDigests(progress_.digest, layer.digests[e]);
    if (!head_.digests.empty()) head_.digests[row * head_.info.experts + e] = layer.digests[e];
  }
}

Status ShadowBuild::Save() {
  const bool last = progress_.layers == head_.info.layers.size();
  if (!options_.save || last || Clock::now() - saved_at_ < options_.save_after) return {};
  if (Status synced = partial_->Sync(); !synced) return synced;
  options_.save(progress_.Encode());
  saved_ = true;
  saved_at_ = Clock::now();
  return {};
}

Result<ShadowReport> ShadowBuild::Finish() {
  ShadowReport report;
  ShadowInfo& info = head_.info;
  report.matrices = uint64_t{info.layers.size()} * info.experts * 3;
  info.relative_error = progress_.error_sum / static_cast<double>(report.matrices);
  if (info.version >= 2) {
    info.gain = Energies{progress_.weight_energy, progress_.shadow_energy, 0}.gain();
  }
  for (float& value : head_.codebooks) {
    value = static_cast<float>(static_cast<double>(value) * info.gain);
  }
  if (Status same = model_->Unchanged(); !same) return Fail(same.error());
  const std::string head = EncodeShadowHead(head_);
  Status written = partial_->Write(0, std::as_bytes(std::span(head)));
  if (written) written = partial_->Finish();
  if (!written) return Fail(written.error());
  report.path = target_;
  report.fingerprint = progress_.fingerprint;
  report.info = info;
  report.expert_bytes = expert_bytes_;
  report.resumed_layers = resumed_;
  report.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  return report;
}

Result<ShadowReport> ShadowBuild::Run() {
  Status done = Prepare();
  if (done) done = GoOn();
  while (done && progress_.layers < head_.info.layers.size()) {
    done = EncodeLayer(progress_.layers++);
    if (done) done = Save();
  }
  if (done) return Finish();
  if (partial_ && saved_ && done.error().code == ErrorCode::kCancelled) partial_->Keep();
  return Fail(done.error());
}

}  // namespace

Result<ShadowReport> BuildShadows(const std::string& model_path, const ShadowOptions& options) {
  const bool known = options.version == 1 || options.version == 2;
  const uint32_t most = options.version == 1 ? 1 : kMaxShadowStages;
  if (!known || options.stages == 0 || options.stages > most) {
    return Fail(ErrorCode::kInvalidArgument,
                "shadows of version " + std::to_string(options.version) + " with " +
                    std::to_string(options.stages) + " stages cannot be made",
                "version 1 has one stage, version 2 one or two");
  }
  Result<std::shared_ptr<const MkimFile>> model = MkimFile::Open(model_path);
  if (!model) return Fail(model.error());
  return ShadowBuild(options, std::move(*model)).Run();
}

}  // namespace mk
