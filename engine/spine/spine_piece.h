// SpinePiece: one read of a model file and where its values go in the memory of a spine.
//
// A spine is laid out twice by the same code (spine_builder.h): once to count, so that a load can
// be refused before anything is allocated, and once over real memory, which also yields the pieces
// to read. Pieces are independent and are read in parallel.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/model/load_progress.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

// `first` and `count` are elements of the tensor.
struct SpinePiece {
  enum class Kind {
    kCopy,            // floats as they are
    kCopyInts,        // 32-bit integers as they are
    kPack,            // rows of a packed matrix: PackRows
    kPackTransposed,  // whole matrix: packed, and packed transposed into `second`
    kProduct,         // times the values of `factor`, element by element
    kExpSpread,       // exp of every value, repeated as often as fills the destination
    kExpTile,         // exp of all values in turn, the whole repeated until it is filled
    kTranspose,       // [rows][cols] to [cols][rows]
  };
  Kind kind = Kind::kCopy;
  const TensorEntry* tensor = nullptr;
  const TensorEntry* factor = nullptr;
  uint64_t first = 0;
  size_t count = 0;
  size_t cols = 0;                        // of a matrix row in the file
  WeightKind packing = WeightKind::kF32;  // kPack, kPackTransposed
  std::span<std::byte> destination;
  size_t destination_row = 0;   // kPack: first row in the packed matrix
  std::span<std::byte> second;  // kPackTransposed
};

struct SpinePlan {
  size_t bytes = 0;
  uint64_t read_bytes = 0;         // what reading the pieces adds to the progress of a load
  std::vector<SpinePiece> pieces;  // empty when only counting
};

// Reads all pieces.
Status ReadPieces(const MkimFile& file, std::span<const SpinePiece> pieces, ThreadPool& pool,
                  LoadProgress& progress);

}  // namespace mk
