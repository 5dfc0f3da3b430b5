// Spine: lays out the dense weights of a K3 file and reads them into packed memory.
//
// Every precision has a layout of its own. It is made twice by the same code: once to count, so
// that a load can be refused before anything is allocated, and once over real memory, which also
// yields the pieces to read. Pieces are independent and are read in parallel.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/k3/load_progress.h"
#include "engine/k3/shape.h"
#include "engine/k3/weights.h"
#include "engine/model/model.h"
#include "engine/parallel/thread_pool.h"

namespace mk::k3 {

// One read of the file and where its values go. `first` and `count` are elements of the tensor.
struct SpinePiece {
  enum class Kind {
    kCopy,         // as they are
    kPack,         // rows of a packed matrix: PackRows
    kProduct,      // times the values of `factor`, element by element
    kHeadRate,     // [H] to exp of it, spread over [H][D]
    kChannelRate,  // [D] to exp of it, repeated for [H][D]
    kConv,         // [P][taps] to [taps][P]
    kKeyRows,      // U_h: packed, and packed transposed into `second`
  };
  Kind kind = Kind::kCopy;
  const TensorEntry* tensor = nullptr;
  const TensorEntry* factor = nullptr;
  uint64_t first = 0;
  size_t count = 0;
  size_t cols = 0;                        // of a matrix row in the file
  WeightKind packing = WeightKind::kF32;  // kPack, kKeyRows
  std::span<std::byte> destination;
  size_t destination_row = 0;   // kPack: first row in the packed matrix
  std::span<std::byte> second;  // kKeyRows
};

struct SpineLayout {
  K3Weights weights;  // without memory
  size_t bytes = 0;
  uint64_t read_bytes = 0;         // what reading the pieces adds to the progress of a load
  std::vector<SpinePiece> pieces;  // empty when only counting
};

struct TableLayout {
  K3Tables tables;  // without memory
  size_t bytes = 0;
  std::vector<SpinePiece> pieces;
};

// `base`: zeroed memory of as many bytes as a counting call returned, aligned to 64, or nullptr to
// count. kCorrupt when a tensor is missing or has a wrong number of elements.
Result<SpineLayout> LayOutSpine(const MkimFile& file, const K3Shape& shape, Precision precision,
                                std::byte* base);
Result<TableLayout> LayOutTables(const MkimFile& file, const K3Shape& shape, std::byte* base);

// Reads all pieces.
Status ReadSpine(const MkimFile& file, const K3Shape& shape, const std::vector<SpinePiece>& pieces,
                 ThreadPool& pool, LoadProgress& progress);

}  // namespace mk::k3
