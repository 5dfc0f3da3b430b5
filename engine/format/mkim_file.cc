#include "engine/format/mkim_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <utility>

#include "engine/format/digest.h"
#include "engine/format/directory.h"
#include "engine/format/dsv4_census.h"
#include "engine/format/k3_census.h"

namespace mk {

// Builds a MkimFile step by step; only what passed every step is handed out.
class MkimOpener {
 public:
  MkimOpener(std::string path, const OpenOptions& options)
      : options_(options), file_(new MkimFile()) {
    file_->path_ = std::move(path);
  }

  Result<std::shared_ptr<const MkimFile>> Run() {
    Status status = OpenAndParse();
    if (status) status = Index();
    if (!status) return Fail(status.error());
    if (options_.checks == OpenOptions::Checks::kModel) {
      status = CheckModel();
      if (!status) return Fail(status.error());
    }
    status = file_->Unchanged();
    if (!status) return Fail(status.error());
    return std::shared_ptr<const MkimFile>(std::move(file_));
  }

  Result<std::shared_ptr<const MkimFile>> RunOnHeader(std::string header, uint64_t file_bytes) {
    file_->header_ = std::move(header);
    file_->identity_.size = file_bytes;
    Status status = Parse();
    if (status) status = Index();
    if (!status) return Fail(status.error());
    return std::shared_ptr<const MkimFile>(std::move(file_));
  }

 private:
  tl::unexpected<Error> Corrupt(const std::string& problem) const {
    return Fail(ErrorCode::kCorrupt, file_->path_ + ": " + problem,
                "the file is damaged or was written wrongly; copy it again or build it anew");
  }

  Status OpenAndParse() {
    auto opened = OpenForReading(file_->path_);
    if (!opened) return Fail(opened.error());
    file_->fd_ = std::move(opened->fd);
    file_->identity_ = opened->identity;
    file_->path_ = CanonicalPath(file_->path_);
    const uint64_t size = file_->identity_.size;
    auto header = ReadHeader(file_->fd_.get(), size, file_->path_);
    if (!header) return Fail(header.error());
    file_->header_ = std::move(*header);
    return Parse();
  }

  Status Parse() {
    auto directory = ParseHeader(file_->header_, file_->identity_.size, file_->path_);
    if (!directory) return Fail(directory.error());
    file_->version_ = directory->version;
    file_->config_json_ = directory->config_json;
    file_->entries_ = std::move(directory->entries);
    file_->warnings_ = std::move(directory->warnings);
    return {};
  }

  // All that the header says, in order and checked.
  Status Index() {
    Status status = ReadConfig();
    if (status) status = CheckTypes();
    if (status) status = IndexNames();
    if (!status) return status;
    IndexExperts();
    PlanResources();
    return {};
  }

  Status ReadConfig() {
    if (file_->version_ == 1) {
      file_->config_ = DefaultConfig();
      return {};
    }
    auto config = ParseConfig(file_->config_json_, "config of " + file_->path_, options_.config,
                              file_->warnings_);
    if (!config) return Fail(config.error());
    file_->config_ = std::move(*config);
    return {};
  }

  // The extension types exist only where the config announces them.
  Status CheckTypes() const {
    if (file_->version_ == 2 && file_->config_.format >= 3) return {};
    for (const TensorEntry& entry : file_->entries_) {
      if (entry.dtype != DType::kBf16) continue;
      return Fail(ErrorCode::kUnsupported,
                  file_->path_ + ": tensor '" + std::string(entry.name) +
                      "' is BF16, which only files with \"format\": 3 may hold",
                  "write \"format\": 3 into the config, or the tensor as F32");
    }
    return {};
  }

  Status IndexNames() {
    std::random_device random;
    file_->hash_seed_ = uint64_t{random()} << 32 | random();
    auto& slots = file_->by_hash_;
    const auto& entries = file_->entries_;
    slots.reserve(entries.size());
    for (uint32_t i = 0; i < entries.size(); ++i) {
      const std::string_view name = entries[i].name;
      slots.push_back({XXH3_64bits_withSeed(name.data(), name.size(), file_->hash_seed_), i});
    }
    std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) {
      return a.hash != b.hash ? a.hash < b.hash : a.index < b.index;
    });
    for (size_t i = 0; i < slots.size(); ++i) {
      for (size_t j = i + 1; j < slots.size() && slots[j].hash == slots[i].hash; ++j) {
        if (entries[slots[i].index].name == entries[slots[j].index].name) {
          return Corrupt("tensor '" + std::string(entries[slots[i].index].name) +
                         "' is in the directory twice");
        }
      }
    }
    return {};
  }

  void IndexExperts() {
    const MkimConfig& config = file_->config_;
    const bool all_moe = config.feed_forward.empty();
    uint32_t rows = 0;
    file_->expert_rows_.assign(config.n_layers, MkimFile::kNoEntry);
    for (uint32_t l = 0; l < config.n_layers; ++l) {
      if (all_moe || !config.IsDense(l)) file_->expert_rows_[l] = rows++;
    }
    // A config that calls for more experts than there are entries allocates nothing.
    const uint64_t slots = uint64_t{rows} * config.n_experts * 3;
    if (slots > file_->entries_.size()) return;
    file_->experts_.assign(slots, MkimFile::kNoEntry);
    for (uint32_t i = 0; i < file_->entries_.size(); ++i) {
      const std::optional<ExpertName> name = ParseExpertName(file_->entries_[i].name);
      if (!name || name->layer >= config.n_layers || name->expert >= config.n_experts) continue;
      const uint32_t row = file_->expert_rows_[name->layer];
      if (row == MkimFile::kNoEntry) continue;
      const size_t slot =
          (size_t{row} * config.n_experts + name->expert) * 3 + static_cast<size_t>(name->part);
      // Names of the other architecture must not take the place of this one's.
      const bool k3_name = file_->entries_[i].name.find(".block_sparse_moe.") != std::string::npos;
      if (k3_name == (config.arch == Architecture::kK3)) file_->experts_[slot] = i;
    }
  }

  void PlanResources() {
    ResourcePlan plan = PlanSequence(file_->config_);
    for (const TensorEntry& entry : file_->entries_) {
      if (ParseExpertName(entry.name)) {
        plan.expert_bytes += entry.size;
      } else {
        plan.spine_file_bytes += entry.size;
        plan.spine_bytes += entry.elements() * sizeof(float);
      }
    }
    plan.expert_index_bytes = file_->header_.capacity() +
                              file_->entries_.capacity() * sizeof(TensorEntry) +
                              file_->by_hash_.capacity() * sizeof(MkimFile::NameSlot) +
                              file_->experts_.capacity() * sizeof(uint32_t);
    file_->resources_ = plan;
  }

  Status CheckModel() {
    const Status budget = CheckBudget(file_->resources_, options_.memory_limit, file_->path_);
    if (!budget) return budget;
    if (file_->config_.arch == Architecture::kDeepSeekV4) {
      return CheckDeepSeekCensus(*file_, file_->warnings_);
    }
    auto reading = CheckK3Census(*file_, file_->warnings_);
    if (!reading) return Fail(reading.error());
    file_->config_.a_log = *reading;
    return {};
  }

  OpenOptions options_;
  std::unique_ptr<MkimFile> file_;
};

Result<std::shared_ptr<const MkimFile>> MkimFile::Open(const std::string& path,
                                                       const OpenOptions& options) {
  try {
    return MkimOpener(path, options).Run();
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the directory of " + path,
                "free some memory, or use a smaller model");
  }
}

Result<std::shared_ptr<const MkimFile>> MkimFile::FromHeader(std::string header,
                                                             uint64_t file_bytes,
                                                             const std::string& name) {
  try {
    OpenOptions options;
    options.checks = OpenOptions::Checks::kContainer;
    return MkimOpener(name, options).RunOnHeader(std::move(header), file_bytes);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the directory of " + name,
                "free some memory, or use a smaller model");
  }
}

const TensorEntry* MkimFile::FindTensor(std::string_view name) const {
  const uint64_t hash = XXH3_64bits_withSeed(name.data(), name.size(), hash_seed_);
  auto it = std::lower_bound(by_hash_.begin(), by_hash_.end(), hash,
                             [](const NameSlot& slot, uint64_t h) { return slot.hash < h; });
  for (; it != by_hash_.end() && it->hash == hash; ++it) {
    if (entries_[it->index].name == name) return &entries_[it->index];
  }
  return nullptr;
}

const TensorEntry* MkimFile::Expert(uint32_t layer, uint32_t expert, ExpertPart part) const {
  if (layer >= expert_rows_.size() || expert >= config_.n_experts || experts_.empty()) {
    return nullptr;
  }
  const uint32_t row = expert_rows_[layer];
  if (row == kNoEntry) return nullptr;
  const size_t slot = (size_t{row} * config_.n_experts + expert) * 3 + static_cast<size_t>(part);
  return experts_[slot] == kNoEntry ? nullptr : &entries_[experts_[slot]];
}

Status MkimFile::ReadBlob(const TensorEntry& entry, std::span<std::byte> out) const {
  if (out.size() != entry.size) {
    return Fail(ErrorCode::kInvalidArgument, "buffer of " + std::to_string(out.size()) +
                                                 " bytes for tensor '" + std::string(entry.name) +
                                                 "' of " + std::to_string(entry.size));
  }
  return ReadBlobRange(entry, 0, out);
}

Status MkimFile::ReadBlobRange(const TensorEntry& entry, uint64_t first,
                               std::span<std::byte> out) const {
  if (first > entry.size || out.size() > entry.size - first) {
    return Fail(ErrorCode::kInvalidArgument,
                "bytes " + std::to_string(first) + " + " + std::to_string(out.size()) +
                    " lie outside tensor '" + std::string(entry.name) + "'");
  }
  return ReadAt(fd_.get(), entry.offset + first, out, path_);
}

Status MkimFile::ReadF32Range(const TensorEntry& entry, uint64_t first,
                              std::span<float> out) const {
  if (entry.dtype == DType::kF32) {
    if (first > entry.elements()) return ReadBlobRange(entry, entry.size + 1, {});
    return ReadBlobRange(entry, first * sizeof(float), std::as_writable_bytes(out));
  }
  if (entry.dtype != DType::kBf16) {
    return Fail(ErrorCode::kInvalidArgument, "tensor '" + std::string(entry.name) + "' is " +
                                                 std::string(DTypeName(entry.dtype)) +
                                                 ", it cannot be read as F32");
  }
  if (first > entry.elements()) return ReadBlobRange(entry, entry.size + 1, {});
  // The halves go to the upper half of `out` and are widened from the front: the write position
  // never overtakes the read position.
  const auto bytes = std::as_writable_bytes(out);
  const auto halves = bytes.subspan(bytes.size() / 2);
  const Status read = ReadBlobRange(entry, first * 2, halves);
  if (!read) return read;
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, halves.data() + 2 * i, sizeof half);
    out[i] = std::bit_cast<float>(uint32_t{half} << 16);
  }
  return {};
}

Status MkimFile::ReadF32(const TensorEntry& entry, std::span<float> out) const {
  if (out.size() != entry.elements()) {
    return Fail(ErrorCode::kInvalidArgument, "buffer of " + std::to_string(out.size()) +
                                                 " values for tensor '" + std::string(entry.name) +
                                                 "' of " + std::to_string(entry.elements()));
  }
  return ReadF32Range(entry, 0, out);
}

Status MkimFile::ReadI32(const TensorEntry& entry, std::span<int32_t> out) const {
  if (entry.dtype != DType::kI32) {
    return Fail(ErrorCode::kInvalidArgument, "tensor '" + std::string(entry.name) + "' is " +
                                                 std::string(DTypeName(entry.dtype)) +
                                                 ", it cannot be read as I32");
  }
  return ReadBlob(entry, std::as_writable_bytes(out));
}

Status MkimFile::Unchanged() const {
  const auto now = IdentityOf(fd_.get(), path_);
  if (!now) return Fail(now.error());
  if (*now == identity_) return {};
  return Fail(ErrorCode::kCorrupt, path_ + " was changed while it was open",
              "unload the model and load it again; replace model files by rename");
}

Result<std::string> MkimFile::Fingerprint() const {
  constexpr uint64_t kSamples = 64;
  constexpr uint64_t kSampleBytes = 4096;
  Xxh3Digest digest;
  digest.Update(std::as_bytes(std::span(&identity_.size, 1)));
  digest.Update(std::as_bytes(std::span(header_)));
  const uint64_t begin = header_.size();
  const uint64_t rest = identity_.size - begin;
  std::array<std::byte, kSampleBytes> block{};
  for (uint64_t i = 0; i < kSamples && rest > 0; ++i) {
    const uint64_t bytes = std::min(kSampleBytes, rest);
    // Spread evenly; the last sample ends with the file.
    const uint64_t room = rest - bytes;
    const uint64_t offset =
        begin + room / (kSamples - 1) * i + room % (kSamples - 1) * i / (kSamples - 1);
    const auto part = std::span(block).first(bytes);
    const Status read = ReadAt(fd_.get(), offset, part, path_);
    if (!read) return Fail(read.error());
    digest.Update(part);
  }
  return digest.Hex();
}

uint64_t MkimFile::CountParameters() const {
  uint64_t count = 0;
  for (const TensorEntry& entry : entries_) {
    if (entry.dtype != DType::kI32) count += entry.elements();
  }
  return count;
}

}  // namespace mk
