#include "engine/spine/spine_builder.h"

#include <algorithm>

namespace mk {
namespace {

// Elements of one read: 4 MiB of floats, or one row when that is more.
constexpr size_t kPieceElements = size_t{1} << 20;

const float* Floats(std::span<const std::byte> memory) {
  return reinterpret_cast<const float*>(memory.data());
}

}  // namespace

const TensorEntry* SpineBuilder::Find(const char* name, size_t elements) {
  const std::string full = prefix_ + name;
  const TensorEntry* entry = file_.FindTensor(full);
  if (entry == nullptr) {
    Refuse("has no tensor " + full);
  } else if (entry->elements() != elements) {
    Refuse("tensor " + full + " has dims " + DimsText(entry->dims()) + ", " +
           std::to_string(elements) + " elements are needed");
  } else {
    return entry;
  }
  return nullptr;
}

void SpineBuilder::Refuse(const std::string& problem) {
  if (!status_) return;
  status_ = Fail(ErrorCode::kCorrupt, file_.path() + ": " + problem,
                 "the file was written wrongly; export or build it again");
}

std::span<std::byte> SpineBuilder::Take(size_t bytes) {
  const size_t begin = plan_.bytes;
  plan_.bytes += (bytes + 63) / 64 * 64;
  if (base_ == nullptr) return {};
  return {base_ + begin, bytes};
}

void SpineBuilder::Add(const SpinePiece& piece) {
  plan_.read_bytes += piece.count * sizeof(float);
  if (base_ != nullptr && piece.tensor != nullptr) plan_.pieces.push_back(piece);
}

// One piece per kPieceElements of rows [first_row, first_row + rows) of the tensor, whole rows
// each. They go to the destination in order, from destination_row on.
void SpineBuilder::AddRows(SpinePiece piece, size_t first_row, size_t rows) {
  const size_t step = std::max<size_t>(1, kPieceElements / piece.cols);
  const std::span<std::byte> destination = piece.destination;
  const size_t destination_row = piece.destination_row;
  for (size_t row = 0; row < rows; row += step) {
    piece.first = static_cast<uint64_t>(first_row + row) * piece.cols;
    piece.count = std::min(step, rows - row) * piece.cols;
    if (piece.kind == SpinePiece::Kind::kPack) {
      piece.destination_row = destination_row + row;
    } else if (!destination.empty()) {
      piece.destination =
          destination.subspan(row * piece.cols * sizeof(float), piece.count * sizeof(float));
    }
    Add(piece);
  }
}

std::span<const float> SpineBuilder::Table(const char* name, size_t rows, size_t cols) {
  SpinePiece piece;
  piece.tensor = Find(name, rows * cols);
  piece.cols = cols;
  piece.destination = TakeFloats(rows * cols);
  AddRows(piece, 0, rows);
  return {Floats(piece.destination), rows * cols};
}

std::span<const int32_t> SpineBuilder::Integers(const char* name, size_t rows, size_t cols) {
  SpinePiece piece;
  piece.kind = SpinePiece::Kind::kCopyInts;
  piece.tensor = Find(name, rows * cols);
  if (piece.tensor != nullptr && piece.tensor->dtype != DType::kI32) {
    Refuse("tensor " + std::string(piece.tensor->name) + " must hold integers (I32)");
  }
  piece.cols = cols;
  piece.destination = Take(rows * cols * sizeof(int32_t));
  AddRows(piece, 0, rows);
  return {reinterpret_cast<const int32_t*>(piece.destination.data()), rows * cols};
}

PackedMatrix SpineBuilder::Stack(WeightKind kind, std::initializer_list<Part> parts, size_t cols) {
  size_t rows = 0;
  for (const Part& part : parts) rows += part.second;
  SpinePiece piece;
  piece.kind = SpinePiece::Kind::kPack;
  piece.cols = cols;
  piece.packing = kind;
  piece.destination = Take(PackedBytes(kind, rows, cols));
  for (const auto& [name, count] : parts) {
    piece.tensor = Find(name, count * cols);
    AddRows(piece, 0, count);
    piece.destination_row += count;
  }
  return {kind, piece.destination.data(), rows, cols};
}

PackedMatrix SpineBuilder::Rows(WeightKind kind, const char* name, size_t all_rows, size_t first,
                                size_t rows, size_t cols) {
  SpinePiece piece;
  piece.kind = SpinePiece::Kind::kPack;
  piece.tensor = Find(name, all_rows * cols);
  piece.cols = cols;
  piece.packing = kind;
  piece.destination = Take(PackedBytes(kind, rows, cols));
  AddRows(piece, first, rows);
  return {kind, piece.destination.data(), rows, cols};
}

std::span<const float> SpineBuilder::Product(const char* name, const char* factor, size_t count) {
  SpinePiece piece;
  piece.kind = SpinePiece::Kind::kProduct;
  piece.tensor = Find(name, count);
  piece.factor = Find(factor, count);
  piece.count = count;
  piece.destination = TakeFloats(count);
  Add(piece);
  return {Floats(piece.destination), count};
}

Result<SpinePlan> SpineBuilder::Finish() {
  if (!status_) return Fail(status_.error());
  return std::move(plan_);
}

}  // namespace mk
