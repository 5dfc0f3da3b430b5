// Loading: measure, refuse what does not fit, allocate, read.

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "engine/k3/k3_model.h"
#include "engine/k3/resident_experts.h"
#include "engine/k3/spine.h"
#include "engine/kernels/causal_conv.h"
#include "engine/parallel/thread_pool.h"

namespace mk::k3 {
namespace {

Status CheckSupported(const MkimFile& file) {
  const uint32_t taps = file.config().kda_conv;
  if (taps >= 2 && taps <= kMaxConvTaps) return {};
  return Fail(ErrorCode::kUnsupported,
              file.path() + ": kda_conv is " + std::to_string(taps) + ", convolutions have 2 to " +
                  std::to_string(kMaxConvTaps) + " taps",
              "only models within this range can be run");
}

std::string MebibytesText(uint64_t bytes) {
  return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

Status CheckLimit(const MkimFile& file, uint64_t bytes, uint64_t limit) {
  if (limit == 0 || bytes <= limit) return {};
  return Fail(ErrorCode::kOutOfMemory,
              file.path() + ": needs " + MebibytesText(bytes) + " of memory, the limit is " +
                  MebibytesText(limit),
              "raise the memory limit or unload another model");
}

Error NoMemory(const MkimFile& file) {
  return {ErrorCode::kOutOfMemory, file.path() + ": no memory to load the model",
          "end other programs or unload another model"};
}

Result<ModelInfo> Describe(const MkimFile& file) {
  const K3Shape shape(file.config());
  ModelInfo info;
  info.architecture = std::string(ArchitectureName(file.config().arch));
  info.path = file.path();
  Result<std::string> fingerprint = file.Fingerprint();
  if (!fingerprint) return Fail(fingerprint.error());
  info.fingerprint = std::move(*fingerprint);
  info.vocab = shape.vocab;
  info.hidden = shape.hidden;
  info.layers = shape.layers;
  info.experts = shape.moe_layers > 0 ? shape.experts : 0;
  info.top_k = shape.moe_layers > 0 ? shape.top_k : 0;
  info.parameters = file.CountParameters();
  info.file_bytes = file.identity().size;
  info.state_bytes = shape.kda_layers * shape.kda_state_floats() * sizeof(float);
  info.bytes_per_token = shape.mla_layers * shape.latent_row() * sizeof(float);
  info.bos = file.config().specials.bos;
  info.end_of_msg = file.config().specials.end_of_msg;
  return info;
}

Result<K3Tables> ReadTables(const MkimFile& file, const K3Shape& shape, size_t bytes,
                            ThreadPool& pool, LoadProgress& progress) {
  Result<PageBuffer> memory = PageBuffer::Allocate(bytes);
  if (!memory) return Fail(memory.error());
  Result<TableLayout> layout = LayOutTables(file, shape, memory->data());
  if (!layout) return Fail(layout.error());
  layout->tables.memory = std::move(*memory);
  if (Status read = ReadSpine(file, shape, layout->pieces, pool, progress); !read) {
    return Fail(read.error());
  }
  return std::move(layout->tables);
}

}  // namespace

K3Model::K3Model(std::shared_ptr<const MkimFile> file, ModelInfo info)
    : file_(std::move(file)),
      info_(std::move(info)),
      shape_(std::make_shared<const K3Shape>(file_->config())) {}

Result<std::shared_ptr<const Model>> K3Model::Load(std::shared_ptr<const MkimFile> mkim,
                                                   const LoadOptions& options) {
  const MkimFile& file = *mkim;
  if (Status good = CheckSupported(file); !good) return Fail(good.error());
  Result<ModelInfo> info = Describe(file);
  if (!info) return Fail(info.error());
  std::shared_ptr<K3Model> model(new K3Model(std::move(mkim), std::move(*info)));
  const K3Shape& shape = *model->shape_;
  Result<TableLayout> tables = LayOutTables(file, shape, nullptr);
  if (!tables) return Fail(tables.error());
  Result<SpineLayout> spine = LayOutSpine(file, shape, options.precision, nullptr);
  if (!spine) return Fail(spine.error());
  Result<uint64_t> expert_bytes = ResidentExperts::Measure(file, shape);
  if (!expert_bytes) return Fail(expert_bytes.error());
  const uint64_t total = tables->bytes + spine->bytes + *expert_bytes;
  if (Status fits = CheckLimit(file, total, options.memory_limit); !fits) {
    return Fail(fits.error());
  }

  Result<std::unique_ptr<ThreadPool>> pool =
      ThreadPool::Create(static_cast<size_t>(std::max(1, options.threads)));
  if (!pool) return Fail(pool.error());
  LoadProgress progress(options.progress, file.identity().size, file.path());
  Result<K3Tables> read_tables = ReadTables(file, shape, tables->bytes, **pool, progress);
  if (!read_tables) return Fail(read_tables.error());
  model->tables_ = std::move(*read_tables);
  Result<LoadedSpine> loaded =
      LoadSpine(file, shape, options.precision, spine->bytes, model->info_.fingerprint,
                options.spine_cache, **pool, progress);
  if (!loaded) return Fail(loaded.error());
  Result<std::unique_ptr<ResidentExperts>> experts =
      ResidentExperts::Load(file, shape, model->tables_.codebook.data(), **pool, progress);
  if (!experts) return Fail(experts.error());
  if (Status same = file.Unchanged(); !same) return Fail(same.error());
  if (Status done = progress.Finish(); !done) return Fail(done.error());
  model->resident_bytes_ = tables->bytes + (*experts)->resident_bytes();
  model->experts_ = std::move(*experts);
  model->TakeSpine(options.precision, std::move(*loaded), options);
  return model;
}

void K3Model::TakeSpine(Precision precision, LoadedSpine spine, const LoadOptions& options) const {
  const auto slot = static_cast<size_t>(precision);
  const PageBuffer& memory = spine.weights->memory;
  std::unique_ptr<SpineWriter> writer;
  if (spine.keep) {
    writer = std::make_unique<SpineWriter>(options.spine_cache, std::move(*spine.keep),
                                           std::span(memory.data(), memory.size()));
  }
  // Nothing fails from here on.
  spine_writers_[slot] = std::move(writer);
  spine_cached_[slot].store(spine.cached, std::memory_order_relaxed);
  resident_bytes_ += memory.size();
  owned_weights_[slot] = std::move(spine.weights);
  weights_[slot].store(owned_weights_[slot].get(), std::memory_order_release);
}

Status K3Model::Prepare(Precision precision, const LoadOptions& options) const {
  const std::lock_guard lock(prepare_mutex_);
  if (prepared(precision)) return {};
  try {
    Result<SpineLayout> spine = LayOutSpine(*file_, *shape_, precision, nullptr);
    if (!spine) return Fail(spine.error());
    if (Status fits = CheckLimit(*file_, spine->bytes, options.memory_limit); !fits) return fits;
    Result<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(static_cast<size_t>(std::max(1, options.threads)));
    if (!pool) return Fail(pool.error());
    LoadProgress progress(options.progress, spine->read_bytes, file_->path());
    Result<LoadedSpine> loaded =
        LoadSpine(*file_, *shape_, precision, spine->bytes, info_.fingerprint, options.spine_cache,
                  **pool, progress);
    if (!loaded) return Fail(loaded.error());
    if (Status same = file_->Unchanged(); !same) return same;
    if (Status done = progress.Finish(); !done) return done;
    TakeSpine(precision, std::move(*loaded), options);
  } catch (const std::bad_alloc&) {
    return Fail(NoMemory(*file_));
  }
  return {};
}

Result<std::shared_ptr<const Model>> LoadK3(std::shared_ptr<const MkimFile> file,
                                            const LoadOptions& options) {
  try {
    return K3Model::Load(file, options);
  } catch (const std::bad_alloc&) {
    return Fail(NoMemory(*file));
  }
}

}  // namespace mk::k3
