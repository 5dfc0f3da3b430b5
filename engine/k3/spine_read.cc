#include <cmath>
#include <new>
#include <vector>

#include "engine/base/file.h"
#include "engine/k3/spine.h"

namespace mk::k3 {
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

// Packs U_h [nope][rank] as it is and transposed.
void PackKeyRows(const K3Shape& shape, const SpinePiece& piece, Staging& staging) {
  const size_t rank = shape.kv_rank;
  const size_t nope = shape.nope;
  PackRows(piece.packing, staging.values, 0, nope, rank, piece.destination);
  const std::span<float> transposed = Room(staging.other, piece.count);
  for (size_t row = 0; row < nope; ++row) {
    for (size_t col = 0; col < rank; ++col) {
      transposed[col * nope + row] = staging.values[row * rank + col];
    }
  }
  PackRows(piece.packing, transposed, 0, rank, nope, piece.second);
}

// Brings values that were read to where the layers want them.
void Place(const K3Shape& shape, const SpinePiece& piece, Staging& staging) {
  const std::vector<float>& values = staging.values;
  auto* const out = reinterpret_cast<float*>(piece.destination.data());
  switch (piece.kind) {
    case SpinePiece::Kind::kCopy:
      break;  // read in place
    case SpinePiece::Kind::kPack:
      PackRows(piece.packing, values, piece.destination_row, piece.count / piece.cols, piece.cols,
               piece.destination);
      break;
    case SpinePiece::Kind::kProduct:
      for (size_t i = 0; i < piece.count; ++i) out[i] = values[i] * staging.other[i];
      break;
    case SpinePiece::Kind::kHeadRate:
      for (size_t i = 0; i < shape.kda_width; ++i) out[i] = std::exp(values[i / shape.kda_dim]);
      break;
    case SpinePiece::Kind::kChannelRate:
      for (size_t i = 0; i < shape.kda_width; ++i) out[i] = std::exp(values[i % shape.kda_dim]);
      break;
    case SpinePiece::Kind::kConv:
      for (size_t i = 0; i < piece.count; ++i) {
        const size_t channel = i / shape.conv_taps;
        const size_t tap = i % shape.conv_taps;
        out[tap * shape.kda_width + channel] = values[i];
      }
      break;
    case SpinePiece::Kind::kKeyRows:
      PackKeyRows(shape, piece, staging);
      break;
  }
}

// Pieces to ask the disk for before their turn comes: 32 MiB at most.
constexpr size_t kPiecesAhead = 8;

void ReadPieceAhead(const MkimFile& file, const SpinePiece& piece) {
  const uint64_t element = piece.tensor->dtype == DType::kBf16 ? 2 : sizeof(float);
  ReadAhead(file.fd(), piece.tensor->offset + piece.first * element, piece.count * element);
}

Status ReadPiece(const MkimFile& file, const K3Shape& shape, const SpinePiece& piece,
                 Staging& staging) {
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
  Place(shape, piece, staging);
  return {};
}

}  // namespace

Status ReadSpine(const MkimFile& file, const K3Shape& shape, const std::vector<SpinePiece>& pieces,
                 ThreadPool& pool, LoadProgress& progress) {
  std::vector<Staging> staging(pool.size());
  return pool.ParallelFor(pieces.size(), [&](size_t i, size_t worker) -> Status {
    if (i + kPiecesAhead < pieces.size()) ReadPieceAhead(file, pieces[i + kPiecesAhead]);
    const SpinePiece& piece = pieces[i];
    if (Status read = ReadPiece(file, shape, piece, staging[worker]); !read) return read;
    return progress.Add(piece.count * sizeof(float), worker);
  });
}

}  // namespace mk::k3
