#include "engine/k3/resident_experts.h"

#include <array>
#include <utility>

#include "engine/base/file.h"
#include "engine/k3/expert_arena.h"

namespace mk::k3 {
namespace {

constexpr size_t kRunsPerTask = 32;

Status ReadRuns(const MkimFile& file, const ExpertArena& plan, std::byte* arena, ThreadPool& pool,
                LoadProgress& progress) {
  const size_t tasks = (plan.runs.size() + kRunsPerTask - 1) / kRunsPerTask;
  return pool.ParallelFor(tasks, [&](size_t task, size_t worker) -> Status {
    uint64_t bytes = 0;
    for (size_t i = task * kRunsPerTask; i < plan.runs.size() && i < (task + 1) * kRunsPerTask;
         ++i) {
      const ExpertRun& run = plan.runs[i];
      Status read =
          ReadAt(file.fd(), run.file_offset, {arena + run.arena_offset, run.bytes}, file.path());
      if (!read) return read;
      bytes += run.bytes;
    }
    return progress.Add(bytes, worker);
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
    Status read = ReadRuns(file, *plan, layer.arena.data(), pool, progress);
    if (!read) return Fail(read.error());
    layer.experts.resize(shape.experts);
    for (size_t e = 0; e < shape.experts; ++e) {
      ExpertWeights& expert = layer.experts[e];
      const std::array<std::pair<ExpertPart, ExpertMatrix*>, 3> parts = {
          {{ExpertPart::kGate, &expert.gate},
           {ExpertPart::kDown, &expert.down},
           {ExpertPart::kUp, &expert.up}}};
      for (size_t p = 0; p < parts.size(); ++p) {
        const TensorEntry& entry =
            *file.Expert(static_cast<uint32_t>(l), static_cast<uint32_t>(e), parts[p].first);
        Result<ExpertMatrix> view =
            ViewExpert(file, entry, layer.arena.data() + plan->offsets[e * 3 + p], codebook);
        if (!view) return Fail(view.error());
        *parts[p].second = *view;
      }
    }
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
