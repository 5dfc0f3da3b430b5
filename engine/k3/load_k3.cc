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

Result<ModelInfo> Describe(const MkimFile& file, const K3Shape& shape, uint64_t resident_bytes) {
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
  info.resident_bytes = resident_bytes;
  info.state_bytes = shape.kda_layers * shape.kda_state_floats() * sizeof(float);
  info.bytes_per_token = shape.mla_layers * shape.latent_row() * sizeof(float);
  info.bos = file.config().specials.bos;
  info.end_of_msg = file.config().specials.end_of_msg;
  return info;
}

Result<std::shared_ptr<const Model>> Load(const MkimFile& file, const LoadOptions& options) {
  if (Status good = CheckSupported(file); !good) return Fail(good.error());
  auto shape = std::make_shared<const K3Shape>(file.config());
  Result<SpineLayout> counted = LayOutSpine(file, *shape, nullptr);
  if (!counted) return Fail(counted.error());
  Result<uint64_t> expert_bytes = ResidentExperts::Measure(file, *shape);
  if (!expert_bytes) return Fail(expert_bytes.error());
  const uint64_t spine_bytes = uint64_t{counted->floats} * sizeof(float);
  const uint64_t total = spine_bytes + *expert_bytes;
  if (Status fits = CheckLimit(file, total, options.memory_limit); !fits) {
    return Fail(fits.error());
  }

  Result<PageBuffer> memory = PageBuffer::Allocate(spine_bytes);
  if (!memory) return Fail(memory.error());
  Result<SpineLayout> spine = LayOutSpine(file, *shape, memory->floats().data());
  if (!spine) return Fail(spine.error());
  spine->weights.memory = std::move(*memory);
  Result<std::unique_ptr<ThreadPool>> pool =
      ThreadPool::Create(static_cast<size_t>(std::max(1, options.threads)));
  if (!pool) return Fail(pool.error());
  LoadProgress progress(options.progress, total, file.path());
  if (Status read = ReadSpine(file, *shape, spine->pieces, **pool, progress); !read) {
    return Fail(read.error());
  }
  Result<std::unique_ptr<ResidentExperts>> experts =
      ResidentExperts::Load(file, *shape, spine->weights.codebook.data(), **pool, progress);
  if (!experts) return Fail(experts.error());
  if (Status same = file.Unchanged(); !same) return Fail(same.error());
  Result<ModelInfo> info = Describe(file, *shape, spine_bytes + (*experts)->resident_bytes());
  if (!info) return Fail(info.error());
  if (Status done = progress.Finish(); !done) return Fail(done.error());
  return std::make_shared<const K3Model>(std::move(*info), std::move(shape),
                                         std::move(spine->weights), std::move(*experts));
}

}  // namespace

Result<std::shared_ptr<const Model>> LoadK3(const MkimFile& file, const LoadOptions& options) {
  try {
    return Load(file, options);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, file.path() + ": no memory to load the model",
                "end other programs or unload another model");
  }
}

}  // namespace mk::k3
