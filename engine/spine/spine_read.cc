#include <cmath>
#include <vector>

#include "engine/base/file.h"
#include "engine/spine/spine_piece.h"

namespace mk {
namespace {

// Buffers of one worker, grown to the largest piece that it met.
struct Staging {
  std::vector<float> values;
  std::vector<float> other;
};

// The first `count` floats of a buffer, which is made longer only when it has to be.
std::span<float> Room(std::vector<float>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count);
  return {buffer.data(), count};
}

// [rows][cols] to [cols][rows].
void Transpose(std::span<const float> values, size_t cols, float* out) {
  const size_t rows = values.size() / cols;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < cols; ++col) out[col * rows + row] = values[row * cols + col];
  }
}

void PackTransposed(const SpinePiece& piece, Staging& staging) {
  const size_t rows = piece.count / piece.cols;
  const std::span<const float> values(staging.values.data(), piece.count);
  PackRows(piece.packing, values, 0, rows, piece.cols, piece.destination);
  const std::span<float> transposed = Room(staging.other, piece.count);
  Transpose(values, piece.cols, transposed.data());
  PackRows(piece.packing, transposed, 0, piece.cols, rows, piece.second);
}

// Brings values that were read to where the layers want them.
void Place(const SpinePiece& piece, Staging& staging) {
  const std::span<const float> values(staging.values.data(), piece.count);
  auto* const out = reinterpret_cast<float*>(piece.destination.data());
  const size_t outputs = piece.destination.size() / sizeof(float);
  switch (piece.kind) {
    case SpinePiece::Kind::kCopy:
    case SpinePiece::Kind::kCopyInts:
      break;  // read in place
    case SpinePiece::Kind::kPack:
      PackRows(piece.packing, values, piece.destination_row, piece.count / piece.cols, piece.cols,
               piece.destination);
      break;
    case SpinePiece::Kind::kPackTransposed:
      PackTransposed(piece, staging);
      break;
    case SpinePiece::Kind::kProduct:
      for (size_t i = 0; i < piece.count; ++i) out[i] = values[i] * staging.other[i];
      break;
    case SpinePiece::Kind::kExpSpread:
      for (size_t i = 0; i < outputs; ++i) out[i] = std::exp(values[i / (outputs / piece.count)]);
      break;
    case SpinePiece::Kind::kExpTile:
      for (size_t i = 0; i < outputs; ++i) out[i] = std::exp(values[i % piece.count]);
      break;
    case SpinePiece::Kind::kTranspose:
      Transpose(values, piece.cols, out);
      break;
  }
}

// Pieces to ask the disk for before their turn comes: 32 MiB at most.
constexpr size_t kPiecesAhead = 8;

void ReadPieceAhead(const MkimFile& file, const SpinePiece& piece) {
  const uint64_t element = piece.tensor->dtype == DType::kBf16 ? 2 : sizeof(float);
  ReadAhead(file.fd(), piece.tensor->offset + piece.first * element, piece.count * element);
}

Status ReadPiece(const MkimFile& file, const SpinePiece& piece, Staging& staging) {
  if (piece.kind == SpinePiece::Kind::kCopyInts) {
    return file.ReadBlobRange(*piece.tensor, piece.first * sizeof(int32_t), piece.destination);
  }
  if (piece.kind == SpinePiece::Kind::kCopy) {
    auto* const out = reinterpret_cast<float*>(piece.destination.data());
    return file.ReadF32Range(*piece.tensor, piece.first, {out, piece.count});
  }
  const std::span<float> values = Room(staging.values, piece.count);
  if (Status read = file.ReadF32Range(*piece.tensor, piece.first, values); !read) return read;
  if (piece.factor != nullptr) {
    const std::span<float> factor = Room(staging.other, piece.count);
    if (Status read = file.ReadF32(*piece.factor, factor); !read) return read;
  }
  Place(piece, staging);
  return {};
}

}  // namespace

Status ReadPieces(const MkimFile& file, std::span<const SpinePiece> pieces, ThreadPool& pool,
                  LoadProgress& progress) {
  std::vector<Staging> staging(pool.size());
  return pool.ParallelFor(pieces.size(), [&](size_t i, size_t worker) -> Status {
    if (i + kPiecesAhead < pieces.size()) ReadPieceAhead(file, pieces[i + kPiecesAhead]);
    const SpinePiece& piece = pieces[i];
    if (Status read = ReadPiece(file, piece, staging[worker]); !read) return read;
    return progress.Add(piece.count * sizeof(float), worker);
  });
}

}  // namespace mk
