#include "engine/experts/resident_experts.h"

#include <array>
#include <utility>

#include "engine/base/file.h"
#include "engine/experts/expert_arena.h"

namespace mk {
namespace {

// Runs to ask the disk for before their turn comes: 32 MiB at most.
constexpr size_t kRunsAhead = 8;

// One layer on its way: what to read, and to where.
struct LayerRead {
  ExpertArena plan;
  std::byte* arena = nullptr;
  std::vector<ExpertWeights>* experts = nullptr;
};

// Reads a run and prepares its matrices.
Status ReadRun(const MkimFile& file, const LayerRead& layer, const ExpertRun& run,
               const float* codebook, std::vector<std::byte>& buffer) {
  if (buffer.size() < run.bytes) buffer.resize(run.bytes);
  const std::span<std::byte> raw = std::span(buffer).first(run.bytes);
  if (Status read = ReadAt(file.fd(), run.file_offset, raw, file.path()); !read) return read;
  for (size_t b = run.first_blob; b < run.first_blob + run.blobs; ++b) {
    const ExpertBlob& blob = layer.plan.blobs[b];
    Result<ExpertMatrix> matrix =
        PrepareExpert(file, *blob.entry, raw.data() + (blob.entry->offset - run.file_offset),
                      layer.arena + blob.arena_offset, codebook);
    if (!matrix) return Fail(matrix.error());
    MatrixOf((*layer.experts)[blob.index / 3], static_cast<ExpertPart>(blob.index % 3)) = *matrix;
  }
  return {};
}

// Reads the runs of all layers, in one loop, so that workers wait for each other only once.
Status ReadLayers(const MkimFile& file, const std::vector<LayerRead>& layers, const float* codebook,
                  ThreadPool& pool, LoadProgress& progress) {
  std::vector<std::pair<const LayerRead*, const ExpertRun*>> tasks;
  for (const LayerRead& layer : layers) {
    for (const ExpertRun& run : layer.plan.runs) tasks.emplace_back(&layer, &run);
  }
  std::vector<std::vector<std::byte>> staging(pool.size());
  return pool.ParallelFor(tasks.size(), [&](size_t task, size_t worker) -> Status {
    if (task + kRunsAhead < tasks.size()) {
      const ExpertRun& later = *tasks[task + kRunsAhead].second;
      ReadAhead(file.fd(), later.file_offset, later.bytes);
    }
    const auto& [layer, run] = tasks[task];
    if (Status read = ReadRun(file, *layer, *run, codebook, staging[worker]); !read) return read;
    return progress.Add(run->bytes, worker);
  });
}

}  // namespace

Result<uint64_t> ResidentExperts::Measure(const MkimFile& file, const ExpertShape& shape) {
  uint64_t bytes = 0;
  for (size_t l = 0; l < shape.in_layer.size(); ++l) {
    if (!shape.in_layer[l]) continue;
    Result<ExpertArena> plan = PlanExpertArena(file, shape, l);
    if (!plan) return Fail(plan.error());
    bytes += plan->bytes + shape.experts * sizeof(ExpertWeights);
  }
  return bytes;
}

Result<std::unique_ptr<ResidentExperts>> ResidentExperts::Load(const MkimFile& file,
                                                               const ExpertShape& shape,
                                                               const float* codebook,
                                                               ThreadPool& pool,
                                                               LoadProgress& progress) {
  std::unique_ptr<ResidentExperts> store(new ResidentExperts());
  store->layers_.resize(shape.in_layer.size());
  std::vector<LayerRead> reads;
  for (size_t l = 0; l < shape.in_layer.size(); ++l) {
    if (!shape.in_layer[l]) continue;
    Result<ExpertArena> plan = PlanExpertArena(file, shape, l);
    if (!plan) return Fail(plan.error());
    Result<PageBuffer> arena = PageBuffer::Allocate(plan->bytes);
    if (!arena) return Fail(arena.error());
    Layer& layer = store->layers_[l];
    layer.arena = std::move(*arena);
    layer.experts.resize(shape.experts);
    reads.push_back({std::move(*plan), layer.arena.data(), &layer.experts});
  }
  if (Status read = ReadLayers(file, reads, codebook, pool, progress); !read) {
    return Fail(read.error());
  }
  return store;
}

Result<size_t> ResidentExperts::Acquire(size_t layer, std::span<uint32_t> pending,
                                        std::span<ExpertWeights> out) {
  (void)AcquireNow(layer, pending, out);
  return pending.size();
}

Status ResidentExperts::AcquireNow(size_t layer, std::span<const uint32_t> experts,
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

}  // namespace mk
