#include "engine/k3/resident_experts.h"

#include <array>
#include <utility>

#include "engine/base/file.h"
#include "engine/k3/expert_arena.h"

namespace mk::k3 {
namespace {

ExpertMatrix& Part(std::vector<ExpertWeights>& experts, size_t index) {
  ExpertWeights& expert = experts[index / 3];
  switch (static_cast<ExpertPart>(index % 3)) {
    case ExpertPart::kGate:
      return expert.gate;
    case ExpertPart::kDown:
      return expert.down;
    case ExpertPart::kUp:
      break;
  }
  return expert.up;
}

// Reads every run and prepares its matrices.
Status ReadRuns(const MkimFile& file, const ExpertArena& plan, const float* codebook,
                std::byte* arena, std::vector<ExpertWeights>& experts, ThreadPool& pool,
                LoadProgress& progress) {
  std::vector<std::vector<std::byte>> staging(pool.size());
  return pool.ParallelFor(plan.runs.size(), [&](size_t task, size_t worker) -> Status {
    const ExpertRun& run = plan.runs[task];
    std::vector<std::byte>& raw = staging[worker];
    raw.resize(run.bytes);
    if (Status read = ReadAt(file.fd(), run.file_offset, raw, file.path()); !read) return read;
    for (size_t b = run.first_blob; b < run.first_blob + run.blobs; ++b) {
      const ExpertBlob& blob = plan.blobs[b];
      Result<ExpertMatrix> matrix =
          PrepareExpert(file, *blob.entry, raw.data() + (blob.entry->offset - run.file_offset),
                        arena + blob.arena_offset, codebook);
      if (!matrix) return Fail(matrix.error());
      Part(experts, blob.index) = *matrix;
    }
    return progress.Add(run.bytes, worker);
  });
}

}  // namespace

Result<uint64_t> ResidentExperts::Measure(const MkimFile& file, const K3Shape& shape) {
  uint64_t bytes = 0;
  for (size_t l = 0; l < shape.layers; ++l) {
    if (shape.feed_forward[l] == FeedForwardKind::kDense) continue;
    Result<ExpertArena> plan = PlanExpertArena(file, shape, l);
    if (!plan) return Fail(plan.error());
    bytes += plan->bytes + shape.experts * sizeof(ExpertWeights);
  }
  return bytes;
}

Result<std::unique_ptr<ResidentExperts>> ResidentExperts::Load(const MkimFile& file,
                                                               const K3Shape& shape,
                                                               const float* codebook,
                                                               ThreadPool& pool,
                                                               LoadProgress& progress) {
  std::unique_ptr<ResidentExperts> store(new ResidentExperts());
  store->layers_.resize(shape.layers);
  for (size_t l = 0; l < shape.layers; ++l) {
    if (shape.feed_forward[l] == FeedForwardKind::kDense) continue;
    Result<ExpertArena> plan = PlanExpertArena(file, shape, l);
    if (!plan) return Fail(plan.error());
    Result<PageBuffer> arena = PageBuffer::Allocate(plan->bytes);
    if (!arena) return Fail(arena.error());
    Layer& layer = store->layers_[l];
    layer.arena = std::move(*arena);
    layer.experts.resize(shape.experts);
    Status read =
        ReadRuns(file, *plan, codebook, layer.arena.data(), layer.experts, pool, progress);
    if (!read) return Fail(read.error());
  }
  return store;
}

Status ResidentExperts::Acquire(size_t layer, std::span<const uint32_t> experts,
                                std::span<ExpertWeights> out) {
  const Layer& from = layers_[layer];
  for (size_t i = 0; i < experts.size(); ++i) out[i] = from.experts[experts[i]];
  return {};
}

uint64_t ResidentExperts::resident_bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.arena.size() + layer.experts.size() * sizeof(ExpertWeights);
  }
  return bytes;
}

}  // namespace mk::k3
