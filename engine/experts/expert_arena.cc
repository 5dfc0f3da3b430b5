#include "engine/experts/expert_arena.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/format/mxfp4.h"
#include "engine/kernels/nibble_panels.h"

namespace mk {
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

Status CheckExpert(const MkimFile& file, const ExpertShape& shape, const TensorEntry& entry,
                   ExpertPart part) {
  const bool down = part == ExpertPart::kDown;
  const size_t rows = down ? shape.width : shape.inner;
  const size_t cols = down ? shape.inner : shape.width;
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

// Bytes of a prepared matrix.
size_t PreparedBytes(const TensorEntry& entry) {
  if (entry.dtype == DType::kMxfp4 || entry.dtype == DType::kMxfp4Sq) {
    return NibbleMatrixBytes(entry.shape[0], entry.shape[1]);
  }
  return static_cast<size_t>(entry.size);
}

// Appends the blob to the last run if it follows it closely, else starts a run.
void Append(const TensorEntry& entry, size_t index, ExpertArena& arena) {
  const auto size = static_cast<size_t>(entry.size);
  arena.blobs.push_back({&entry, index, arena.bytes});
  arena.bytes += PreparedExpertBytes(entry);
  if (!arena.runs.empty()) {
    ExpertRun& run = arena.runs.back();
    const uint64_t end = run.file_offset + run.bytes;
    if (entry.offset >= end && entry.offset - end < kAlignment &&
        run.bytes + size <= kMaxRunBytes) {
      run.bytes = static_cast<size_t>(entry.offset - run.file_offset) + size;
      ++run.blobs;
      return;
    }
  }
  arena.runs.push_back({entry.offset, size, arena.blobs.size() - 1, 1});
}

}  // namespace

size_t PreparedExpertBytes(const TensorEntry& entry) {
  return (PreparedBytes(entry) + kAlignment - 1) / kAlignment * kAlignment;
}

ExpertMatrix& MatrixOf(ExpertWeights& expert, ExpertPart part) {
  switch (part) {
    case ExpertPart::kGate:
      return expert.gate;
    case ExpertPart::kDown:
      return expert.down;
    case ExpertPart::kUp:
      break;
  }
  return expert.up;
}

Result<ExpertArena> PlanExpertArena(const MkimFile& file, const ExpertShape& shape, size_t layer) {
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
  arena.blobs.reserve(entries.size());
  for (const auto& [entry, index] : entries) Append(*entry, index, arena);
  return arena;
}

Result<ExpertMatrix> PrepareExpert(const MkimFile& file, const TensorEntry& entry,
                                   const std::byte* raw, std::byte* destination,
                                   const float* codebook) {
  ExpertMatrix matrix;
  matrix.rows = entry.shape[0];
  matrix.cols = entry.shape[1];
  matrix.packed = reinterpret_cast<const uint8_t*>(destination);
  if (entry.dtype == DType::kF32 || entry.dtype == DType::kVq1) {
    std::memcpy(destination, raw, static_cast<size_t>(entry.size));
    if (entry.dtype == DType::kVq1) {
      matrix.kind = ExpertKind::kVq1;
      matrix.codebook = codebook;
    } else {
      matrix.kind = ExpertKind::kF32;
      matrix.packed = nullptr;
      matrix.values = reinterpret_cast<const float*>(destination);
    }
    return matrix;
  }
  const auto* nibbles = reinterpret_cast<const uint8_t*>(raw);
  const uint8_t* scales = nibbles + matrix.rows * matrix.cols / 2;
  const size_t count = matrix.rows * (matrix.cols / kMxfp4Group);
  matrix.kind = entry.dtype == DType::kMxfp4 ? ExpertKind::kMxfp4 : ExpertKind::kMxfp4Sq;
  if (matrix.kind == ExpertKind::kMxfp4Sq) {
    std::memcpy(&matrix.smax, scales + count, sizeof(matrix.smax));
    if (!std::isfinite(matrix.smax) || matrix.smax < 0) {
      return Fail(ExpertError(ErrorCode::kCorrupt, file, entry,
                              "has a largest scale that is negative or not finite"));
    }
  } else if (std::memchr(scales, kInvalidE8m0, count) != nullptr) {
    return Fail(ExpertError(ErrorCode::kCorrupt, file, entry, "has a scale byte of 255"));
  }
  PackNibblePanels(matrix.rows, matrix.cols, nibbles, scales,
                   {reinterpret_cast<uint8_t*>(destination), PreparedBytes(entry)});
  return matrix;
}

}  // namespace mk
