#include "engine/shadow/expert_values.h"

#include <cmath>
#include <cstring>
#include <string>

#include "engine/format/mxfp4.h"
#include "engine/format/vq1.h"

namespace mk {
namespace {

Error WithName(const MkimFile& file, const TensorEntry& entry, Error error) {
  error.message = file.path() + ": " + std::string(entry.name) + ": " + error.message;
  if (error.hint.empty()) error.hint = "check the file with `mk verify`";
  return error;
}

Status CheckFinite(std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return Fail(ErrorCode::kCorrupt, "value " + std::to_string(i) + " is not finite");
  }
  return {};
}

}  // namespace

ExpertShape ExpertShapeOf(const MkimFile& file) {
  ExpertShape shape;
  shape.in_layer.resize(file.config().n_layers);
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    const TensorEntry* gate = file.Expert(l, 0, ExpertPart::kGate);
    if (gate == nullptr) continue;
    shape.in_layer[l] = true;
    shape.experts = file.config().n_experts;
    shape.inner = gate->shape[0];
    shape.width = gate->shape[1];
  }
  return shape;
}

std::vector<uint32_t> ExpertLayers(const ExpertShape& shape) {
  std::vector<uint32_t> layers;
  for (size_t l = 0; l < shape.in_layer.size(); ++l) {
    if (shape.in_layer[l]) layers.push_back(static_cast<uint32_t>(l));
  }
  return layers;
}

Result<ExpertValues> ExpertValues::Open(const MkimFile& file) {
  ExpertValues values(file);
  if (const TensorEntry* codebook = file.FindTensor("vq_codebook"); codebook != nullptr) {
    values.codebook_.resize(kVq1CodebookSize);
    if (codebook->elements() != kVq1CodebookSize) {
      return Fail(ErrorCode::kCorrupt, file.path() + ": vq_codebook is not [256, 16]",
                  "the file is damaged; export or build it again");
    }
    if (Status read = file.ReadF32(*codebook, values.codebook_); !read) return Fail(read.error());
  }
  return values;
}

Status ExpertValues::Read(const TensorEntry& entry, std::vector<std::byte>& raw,
                          std::span<float> out) const {
  if (entry.n_dims != 2 || out.size() != entry.elements()) {
    return Fail(ErrorCode::kInternal, std::string(entry.name) + " read as another shape");
  }
  raw.resize(entry.size);
  if (Status read = file_->ReadBlob(entry, raw); !read) return read;
  const size_t rows = entry.shape[0];
  const size_t cols = entry.shape[1];
  Status decoded;
  switch (entry.dtype) {
    case DType::kF32:
      std::memcpy(out.data(), raw.data(), raw.size());
      break;
    case DType::kMxfp4:
      decoded = DecodeMxfp4(raw, rows, cols, out);
      break;
    case DType::kMxfp4Sq:
      decoded = DecodeMxfp4Sq(raw, rows, cols, out);
      break;
    case DType::kVq1:
      decoded = codebook_.empty() ? Fail(ErrorCode::kCorrupt, "VQ1 without the tensor vq_codebook")
                                  : DecodeVq1(raw, rows, cols, codebook_, out);
      break;
    case DType::kI32:
    case DType::kBf16:
      decoded = Fail(ErrorCode::kUnsupported,
                     "experts of type " + std::string(DTypeName(entry.dtype)) + " are not read");
      break;
  }
  if (decoded) decoded = CheckFinite(out);
  if (!decoded) return Fail(WithName(*file_, entry, decoded.error()));
  return {};
}

}  // namespace mk
