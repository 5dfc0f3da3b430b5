#include "engine/shadow/shadow_experts.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "engine/kernels/vq1_matmul.h"
#include "engine/shadow/expert_values.h"

namespace mk {
namespace {

// Bytes that a task reads at a time.
constexpr size_t kPieceBytes = size_t{4} << 20;

}  // namespace

Result<ShadowFile> ShadowExperts::Find(const MkimFile& model, const std::string& path) {
  const std::string& wanted = path.empty() ? ShadowPathFor(model.path()) : path;
  Result<ShadowFile> file = ShadowFile::Open(wanted);
  if (!file && file.error().code == ErrorCode::kNotFound) {
    const std::string out = path.empty() ? "" : " --out " + path;
    return Fail(ErrorCode::kNotFound,
                "no shadows of " + model.path() + ": " + wanted + " does not exist",
                "make them with `mk shadow " + model.path() + out + "`");
  }
  if (!file) return file;
  if (Status good = file->CheckModel(model); !good) return Fail(good.error());
  return file;
}

uint64_t ShadowExperts::Measure(const ShadowInfo& info) {
  return info.stages * kVq1CodebookFloats * sizeof(float) + info.data_bytes();
}

ShadowExperts::ShadowExperts(const ShadowFile& file, const MkimFile& model) : info_(file.info()) {
  const ExpertShape shape = ExpertShapeOf(model);
  width_ = shape.width;
  inner_ = shape.inner;
  rows_.assign(shape.in_layer.size(), kNone);
  for (size_t row = 0; row < info_.layers.size(); ++row) rows_[info_.layers[row]] = row;
}

ShadowExperts::~ShadowExperts() {
  if (locked_) ::munlock(data_.data(), data_.size());
}

Result<std::unique_ptr<ShadowExperts>> ShadowExperts::Load(const ShadowFile& file,
                                                           const MkimFile& model,
                                                           ThreadPool& pool) {
  if (Status good = file.CheckModel(model); !good) return Fail(good.error());
  std::unique_ptr<ShadowExperts> shadows(new ShadowExperts(file, model));
  if (Status read = shadows->Read(file, pool); !read) return Fail(read.error());
  return shadows;
}

Status ShadowExperts::Read(const ShadowFile& file, ThreadPool& pool) {
  Result<PageBuffer> codebooks =
      PageBuffer::Allocate(info_.stages * kVq1CodebookFloats * sizeof(float));
  if (!codebooks) return Fail(codebooks.error());
  codebooks_ = std::move(*codebooks);
  for (size_t s = 0; s < info_.stages; ++s) {
    float* own = codebooks_.floats().data() + s * kVq1CodebookFloats;
    std::ranges::copy(file.codebooks().subspan(s * kVq1CodebookSize, kVq1CodebookSize), own);
    CompleteVq1Codebook(own);
  }
  Result<PageBuffer> data = PageBuffer::Allocate(info_.data_bytes());
  if (!data) return Fail(data.error());
  data_ = std::move(*data);
  const size_t expert_bytes = info_.expert_bytes();
  const size_t at_once = std::clamp<size_t>(kPieceBytes / expert_bytes, 1, info_.experts);
  const size_t pieces = (info_.experts + at_once - 1) / at_once;  // of a layer
  Status read = pool.ParallelFor(info_.layers.size() * pieces, [&](size_t task, size_t) {
    const size_t row = task / pieces;
    const size_t first = task % pieces * at_once;
    const size_t count = std::min<size_t>(at_once, info_.experts - first);
    std::byte* out = data_.data() + (row * info_.experts + first) * expert_bytes;
    return file.Read(row, first, count, {out, count * expert_bytes});
  });
  if (!read) return read;
  locked_ = ::mlock(data_.data(), data_.size()) == 0;
  return {};
}

ExpertWeights ShadowExperts::Get(size_t layer, uint32_t expert) const {
  const size_t place = rows_[layer] * info_.experts + expert;
  const auto* bytes = reinterpret_cast<const uint8_t*>(data_.data()) + place * info_.expert_bytes();
  const auto matrix = [&](size_t part, size_t rows, size_t cols) {
    ExpertMatrix w{ExpertKind::kVq1, rows, cols};
    w.packed = bytes + part * info_.matrix_bytes();
    w.codebook = codebooks_.floats().data();
    w.stages = info_.stages;
    return w;
  };
  return {.gate = matrix(0, inner_, width_),
          .down = matrix(1, width_, inner_),
          .up = matrix(2, inner_, width_)};
}

}  // namespace mk
