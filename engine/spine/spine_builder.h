// SpineBuilder: hands out memory for the weights of a model, one tensor after the other, and notes
// what is to be read into it.
//
//   SpineBuilder builder(file, base);
//   weights.norm = builder.Table("norm.weight", 1, d);
//   weights.head = builder.Stack(kind, {{"lm_head.weight", vocab}}, d);
//   Result<SpinePlan> plan = builder.Finish();
//
// `base` is zeroed memory of as many bytes as a counting run has found, aligned to 64, or nullptr
// to count; what is handed out is then without memory. The first error is kept and Finish returns
// it: kCorrupt when a tensor is missing or has a wrong number of elements.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/model/model.h"
#include "engine/parallel/page_buffer.h"
#include "engine/spine/spine_piece.h"

namespace mk {

// The dense weights of a model in the form of one precision; every architecture derives its own.
// They point into `memory`.
struct SpineWeights {
  SpineWeights() = default;
  virtual ~SpineWeights() = default;
  SpineWeights(const SpineWeights&) = delete;
  SpineWeights& operator=(const SpineWeights&) = delete;

  PageBuffer memory;
};

// Kinds of matrices by precision: exact kF32, bf16 kBf16, q8 kQ8 but for those that are never kept
// as bytes: kBf16 then.
struct SpineKinds {
  explicit SpineKinds(Precision precision)
      : plain(precision == Precision::kExact  ? WeightKind::kF32
              : precision == Precision::kBf16 ? WeightKind::kBf16
                                              : WeightKind::kQ8),
        never_bytes(precision == Precision::kExact ? WeightKind::kF32 : WeightKind::kBf16) {}
  WeightKind plain;
  WeightKind never_bytes;
};

class SpineBuilder {
 public:
  using Part = std::pair<const char*, size_t>;  // tensor name, rows

  SpineBuilder(const MkimFile& file, std::byte* base) : file_(file), base_(base) {}

  const MkimFile& file() const { return file_; }
  // Put before the names of tensors from now on.
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }

  // Floats of a tensor of rows * cols elements.
  std::span<const float> Table(const char* name, size_t rows, size_t cols);
  // Integers of a tensor of rows * cols elements (I32).
  std::span<const int32_t> Integers(const char* name, size_t rows, size_t cols);
  // Matrices that share their input, [rows][cols] each, as one packed matrix.
  PackedMatrix Stack(WeightKind kind, std::initializer_list<Part> parts, size_t cols);
  // Rows [first, first + rows) of a tensor of `all_rows` rows, as a packed matrix.
  PackedMatrix Rows(WeightKind kind, const char* name, size_t all_rows, size_t first, size_t rows,
                    size_t cols);
  // Two tensors of `count` elements, multiplied.
  std::span<const float> Product(const char* name, const char* factor, size_t count);

  // For pieces of other kinds: the tensor `name`, which must have this many elements, nullptr after
  // an error; memory, rounded up to whole cache lines; a piece to be read.
  const TensorEntry* Find(const char* name, size_t elements);
  std::span<std::byte> Take(size_t bytes);
  std::span<std::byte> TakeFloats(size_t floats) { return Take(floats * sizeof(float)); }
  void Add(const SpinePiece& piece);

  Result<SpinePlan> Finish();

 private:
  void AddRows(SpinePiece piece, size_t first_row, size_t rows);
  void Refuse(const std::string& problem);

  const MkimFile& file_;
  std::byte* base_;
  std::string prefix_;
  Status status_;
  SpinePlan plan_;
};

}  // namespace mk
