// What every architecture's census of a file needs: the tensors that a config calls for, and the
// checks that a file has them.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"

namespace mk {

struct ExpectedTensor {
  std::string name;
  std::vector<uint32_t> dims;  // axes of size 1 may be added or left out in a file
  bool is_vector = false;      // a norm, a bias and the like: small, every value is checked
};

using TensorVisitor = std::function<bool(const ExpectedTensor&)>;

// Hands out expected tensors under a prefix until the visitor returns false.
class TensorLister {
 public:
  explicit TensorLister(const TensorVisitor& visit) : visit_(visit) {}
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }
  void Matrix(std::string_view name, uint32_t rows, uint32_t cols) {
    Visit(name, {rows, cols}, false);
  }
  void Vector(std::string_view name, uint32_t size) { Visit(name, {size}, true); }
  // A matrix whose values are checked as those of a vector.
  void Small(std::string_view name, uint32_t rows, uint32_t cols) {
    Visit(name, {rows, cols}, true);
  }
  bool done() const { return done_; }

 private:
  void Visit(std::string_view name, std::vector<uint32_t> dims, bool is_vector) {
    if (done_) return;
    done_ = !visit_(ExpectedTensor{prefix_ + std::string(name), std::move(dims), is_vector});
  }

  const TensorVisitor& visit_;
  std::string prefix_;
  bool done_ = false;
};

// Dims without those that are 1.
std::vector<uint32_t> WithoutOnes(std::span<const uint32_t> dims);

// Checks tensors of one file and remembers which were asked for. Errors: kCorrupt, kIo.
class TensorCensus {
 public:
  explicit TensorCensus(const MkimFile& file) : file_(file), seen_(file.tensors().size()) {}

  tl::unexpected<Error> Bad(std::string_view tensor, const std::string& problem) const;

  // The tensor, which must be there; `dims` are for the message.
  Result<const TensorEntry*> Require(const std::string& name, const std::vector<uint32_t>& dims);
  Status CheckShape(const TensorEntry& entry, const std::vector<uint32_t>& dims) const;
  // F32 or BF16.
  Status CheckFloats(const TensorEntry& entry) const;
  Status CheckFinite(const TensorEntry& entry);
  // All of these, the last for vectors.
  Status CheckSpine(const ExpectedTensor& expected);
  // A table of integers in [0, limit).
  Status CheckIntegers(const std::string& name, const std::vector<uint32_t>& dims, uint32_t limit);

  // The three matrices of every expert of a layer: shapes, and one type for each expert. `prefix`
  // is that of the experts' names, for messages: "layers.3.ffn.experts.".
  Status CheckExperts(uint32_t layer, const std::string& prefix, uint32_t width, uint32_t inner);
  // The codebook, when experts of CheckExperts need it.
  Status CheckCodebook();

  // A warning for tensors that nobody has asked for.
  void WarnUnknown(std::vector<std::string>& warnings) const;

 private:
  Status CheckExpert(uint32_t layer, uint32_t expert, ExpertPart part, const std::string& prefix,
                     const std::vector<uint32_t>& dims, const TensorEntry* gate);

  const MkimFile& file_;
  std::vector<bool> seen_;
  std::vector<float> buffer_;
  bool needs_codebook_ = false;
};

}  // namespace mk
