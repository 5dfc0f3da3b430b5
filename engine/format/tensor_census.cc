#include "engine/format/tensor_census.h"

#include <algorithm>
#include <cmath>

namespace mk {

std::vector<uint32_t> WithoutOnes(std::span<const uint32_t> dims) {
  std::vector<uint32_t> out;
  for (const uint32_t dim : dims) {
    if (dim != 1) out.push_back(dim);
  }
  return out;
}

tl::unexpected<Error> TensorCensus::Bad(std::string_view tensor, const std::string& problem) const {
  return Fail(ErrorCode::kCorrupt,
              file_.path() + ": tensor '" + std::string(tensor) + "' " + problem,
              "config and tensors do not belong together; export or build the model again");
}

Result<const TensorEntry*> TensorCensus::Require(const std::string& name,
                                                 const std::vector<uint32_t>& dims) {
  const TensorEntry* entry = file_.FindTensor(name);
  if (entry == nullptr) return Bad(name, "is missing, it should be " + DimsText(dims));
  seen_[static_cast<size_t>(entry - file_.tensors().data())] = true;
  return entry;
}

Status TensorCensus::CheckShape(const TensorEntry& entry, const std::vector<uint32_t>& dims) const {
  if (WithoutOnes(entry.dims()) == WithoutOnes(dims)) return {};
  return Bad(entry.name,
             "has dims " + DimsText(entry.dims()) + ", the config calls for " + DimsText(dims));
}

Status TensorCensus::CheckFloats(const TensorEntry& entry) const {
  if (entry.dtype == DType::kF32 || entry.dtype == DType::kBf16) return {};
  return Bad(entry.name, "is " + std::string(DTypeName(entry.dtype)) + ", it must be F32");
}

Status TensorCensus::CheckFinite(const TensorEntry& entry) {
  buffer_.resize(entry.elements());
  const Status read = file_.ReadF32(entry, buffer_);
  if (!read) return read;
  for (size_t i = 0; i < buffer_.size(); ++i) {
    if (!std::isfinite(buffer_[i])) {
      return Bad(entry.name, "has a value that is not finite at index " + std::to_string(i));
    }
  }
  return {};
}

Status TensorCensus::CheckSpine(const ExpectedTensor& expected) {
  auto entry = Require(expected.name, expected.dims);
  if (!entry) return Fail(entry.error());
  if (Status good = CheckFloats(**entry); !good) return good;
  if (Status good = CheckShape(**entry, expected.dims); !good) return good;
  return expected.is_vector ? CheckFinite(**entry) : Status();
}

Status TensorCensus::CheckIntegers(const std::string& name, const std::vector<uint32_t>& dims,
                                   uint32_t limit) {
  auto required = Require(name, dims);
  if (!required) return Fail(required.error());
  const TensorEntry& entry = **required;
  if (entry.dtype != DType::kI32) {
    return Bad(name, "is " + std::string(DTypeName(entry.dtype)) + ", it must be I32");
  }
  if (Status good = CheckShape(entry, dims); !good) return good;
  std::vector<int32_t> values(entry.elements());
  if (Status read = file_.ReadI32(entry, values); !read) return read;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && static_cast<uint32_t>(values[i]) < limit) continue;
    return Bad(name, "has " + std::to_string(values[i]) + " at index " + std::to_string(i) +
                         ", entries go from 0 to " + std::to_string(limit - 1));
  }
  return {};
}

Status TensorCensus::CheckExperts(uint32_t layer, const std::string& prefix, uint32_t width,
                                  uint32_t inner) {
  const std::vector<uint32_t> wide = {inner, width};
  const std::vector<uint32_t> tall = {width, inner};
  for (uint32_t e = 0; e < file_.config().n_experts; ++e) {
    const TensorEntry* gate = file_.Expert(layer, e, ExpertPart::kGate);
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kDown, ExpertPart::kUp}) {
      const Status status =
          CheckExpert(layer, e, part, prefix, part == ExpertPart::kDown ? tall : wide, gate);
      if (!status) return status;
    }
  }
  return {};
}

Status TensorCensus::CheckExpert(uint32_t layer, uint32_t expert, ExpertPart part,
                                 const std::string& prefix, const std::vector<uint32_t>& dims,
                                 const TensorEntry* gate) {
  const TensorEntry* entry = file_.Expert(layer, expert, part);
  if (entry == nullptr) {
    return Bad(prefix + std::to_string(expert) + ".w" + std::to_string(static_cast<int>(part) + 1),
               "is missing, it should be " + DimsText(dims));
  }
  seen_[static_cast<size_t>(entry - file_.tensors().data())] = true;
  if (entry->dtype == DType::kI32 || entry->dtype == DType::kBf16) {
    return Bad(entry->name, "is " + std::string(DTypeName(entry->dtype)) +
                                ", an expert must be MXFP4, MXFP4SQ, VQ1 or F32");
  }
  if (entry->dtype != gate->dtype) {
    return Bad(entry->name, "is " + std::string(DTypeName(entry->dtype)) +
                                ", but w1 of the same expert is " +
                                std::string(DTypeName(gate->dtype)));
  }
  if (!std::equal(dims.begin(), dims.end(), entry->dims().begin(), entry->dims().end())) {
    return Bad(entry->name,
               "has dims " + DimsText(entry->dims()) + ", the config calls for " + DimsText(dims));
  }
  needs_codebook_ = needs_codebook_ || entry->dtype == DType::kVq1;
  return {};
}

Status TensorCensus::CheckCodebook() {
  const std::vector<uint32_t> dims = {256, 16};
  if (file_.FindTensor("vq_codebook") == nullptr) {
    if (!needs_codebook_) return {};
    return Bad("vq_codebook", "is missing, VQ1 experts need it ([256, 16] F32)");
  }
  auto codebook = Require("vq_codebook", dims);
  if (!codebook) return Fail(codebook.error());
  const TensorEntry& entry = **codebook;
  if (entry.dtype != DType::kF32 ||
      !std::equal(dims.begin(), dims.end(), entry.dims().begin(), entry.dims().end())) {
    return Bad(entry.name, "is " + std::string(DTypeName(entry.dtype)) + " " +
                               DimsText(entry.dims()) + ", it must be F32 [256, 16]");
  }
  return CheckFinite(entry);
}

void TensorCensus::WarnUnknown(std::vector<std::string>& warnings) const {
  constexpr uint64_t kMaxNamed = 8;
  uint64_t unknown = 0;
  for (size_t i = 0; i < seen_.size(); ++i) {
    if (seen_[i] || ++unknown > kMaxNamed) continue;
    warnings.push_back("unknown tensor '" + std::string(file_.tensors()[i].name) + "' is ignored");
  }
  if (unknown > kMaxNamed) {
    warnings.push_back(std::to_string(unknown - kMaxNamed) + " more unknown tensors are ignored");
  }
}

}  // namespace mk
