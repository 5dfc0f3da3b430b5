#include "engine/k3/expert_arena.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/format/mxfp4.h"

namespace mk::k3 {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxRunBytes = size_t{4} << 20;
constexpr std::array kParts = {ExpertPart::kGate, ExpertPart::kDown, ExpertPart::kUp};

Error ExpertError(ErrorCode code, const MkimFile& file, const TensorEntry& entry,
                  const std::string& problem) {
  return {code, file.path() + ": expert tensor " + std::string(entry.name) + " " + problem,
          code == ErrorCode::kUnsupported ? "convert the experts to MXFP4, MXFP4SQ, VQ1 or F32"
                                          : "the file is damaged; export or build it again"};
}

Status CheckExpert(const MkimFile& file, const K3Shape& shape, const TensorEntry& entry,
                   ExpertPart part) {
  const bool down = part == ExpertPart::kDown;
  const size_t rows = down ? shape.routed_width : shape.expert_inner;
  const size_t cols = down ? shape.expert_inner : shape.routed_width;
  if (entry.n_dims != 2 || entry.shape[0] != rows || entry.shape[1] != cols) {
    return Fail(ExpertError(ErrorCode::kCorrupt, file, entry,
                            "has dims " + DimsText(entry.dims()) + ", [" + std::to_string(rows) +
                                ", " + std::to_string(cols) + "] is needed"));
  }
  switch (entry.dtype) {
    case DType::kF32:
      if (entry.offset % sizeof(float) == 0) return {};
      return Fail(ExpertError(ErrorCode::kCorrupt, file, entry, "is not aligned to 4 bytes"));
    case DType::kMxfp4:
    case DType::kMxfp4Sq:
      return {};
    case DType::kVq1:
      if (file.FindTensor("vq_codebook") != nullptr) return {};
      return Fail(ExpertError(ErrorCode::kCorrupt, file, entry, "needs the tensor vq_codebook"));
    case DType::kI32:
    case DType::kBf16:
      break;
  }
  return Fail(ExpertError(
      ErrorCode::kUnsupported, file, entry,
      "has type " + std::string(DTypeName(entry.dtype)) + ", which no expert kernel reads"));
}

// Appends the blob to the last run if it follows it closely, else starts a run. Returns the
// blob's offset in the arena.
size_t Append(const TensorEntry& entry, ExpertArena& arena) {
  if (!arena.runs.empty()) {
    ExpertRun& run = arena.runs.back();
    const uint64_t end = run.file_offset + run.bytes;
    if (entry.offset >= end && entry.offset - end < kAlignment &&
        run.bytes + entry.size <= kMaxRunBytes) {
      const size_t offset = run.arena_offset + static_cast<size_t>(entry.offset - run.file_offset);
      run.bytes = static_cast<size_t>(entry.offset + entry.size - run.file_offset);
      arena.bytes = run.arena_offset + run.bytes;
      return offset;
    }
  }
  const size_t start = (arena.bytes + kAlignment - 1) / kAlignment * kAlignment +
                       static_cast<size_t>(entry.offset % kAlignment);
  arena.runs.push_back({entry.offset, start, static_cast<size_t>(entry.size)});
  arena.bytes = start + static_cast<size_t>(entry.size);
  return start;
}

}  // namespace

Result<ExpertArena> PlanExpertArena(const MkimFile& file, const K3Shape& shape, size_t layer) {
  std::vector<std::pair<const TensorEntry*, size_t>> entries;  // and their index in [E][3]
  entries.reserve(shape.experts * kParts.size());
  for (size_t e = 0; e < shape.experts; ++e) {
    for (size_t p = 0; p < kParts.size(); ++p) {
      const TensorEntry* entry =
          file.Expert(static_cast<uint32_t>(layer), static_cast<uint32_t>(e), kParts[p]);
      if (entry == nullptr) {
        return Fail(ErrorCode::kCorrupt,
                    file.path() + ": layer " + std::to_string(layer) + " has no w" +
                        std::to_string(p + 1) + " of expert " + std::to_string(e),
                    "the file was written wrongly; export or build it again");
      }
      if (Status good = CheckExpert(file, shape, *entry, kParts[p]); !good) {
        return Fail(good.error());
      }
      entries.emplace_back(entry, e * kParts.size() + p);
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.first->offset < b.first->offset; });
  ExpertArena arena;
  arena.offsets.resize(entries.size());
  for (const auto& [entry, index] : entries) arena.offsets[index] = Append(*entry, arena);
  return arena;
}

Result<ExpertMatrix> ViewExpert(const MkimFile& file, const TensorEntry& entry,
                                const std::byte* blob, const float* codebook) {
  ExpertMatrix matrix;
  matrix.rows = entry.shape[0];
  matrix.cols = entry.shape[1];
  matrix.packed = reinterpret_cast<const uint8_t*>(blob);
  if (entry.dtype == DType::kF32) {
    matrix.kind = ExpertKind::kF32;
    matrix.packed = nullptr;
    matrix.values = reinterpret_cast<const float*>(blob);
    return matrix;
  }
  if (entry.dtype == DType::kVq1) {
    matrix.kind = ExpertKind::kVq1;
    matrix.codebook = codebook;
    return matrix;
  }
  const size_t scales = matrix.rows * (matrix.cols / kMxfp4Group);
  matrix.scales = matrix.packed + matrix.rows * matrix.cols / 2;
  if (entry.dtype == DType::kMxfp4) {
    matrix.kind = ExpertKind::kMxfp4;
    if (std::memchr(matrix.scales, kInvalidE8m0, scales) != nullptr) {
      return Fail(ExpertError(ErrorCode::kCorrupt, file, entry, "has a scale byte of 255"));
    }
    return matrix;
  }
  matrix.kind = ExpertKind::kMxfp4Sq;
  std::memcpy(&matrix.smax, matrix.scales + scales, sizeof(matrix.smax));
  if (!std::isfinite(matrix.smax) || matrix.smax < 0) {
    return Fail(ExpertError(ErrorCode::kCorrupt, file, entry,
                            "has a largest scale that is negative or not finite"));
  }
  return matrix;
}

}  // namespace mk::k3
