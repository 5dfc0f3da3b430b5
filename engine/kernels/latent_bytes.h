// Latent caches as bytes, the form in which the q8 mode keeps them: what latent_attention.h reads
// for a tile of 64 positions.
//
// A row is the latent (which is key and value) and the key that all heads share. Both are quantised
// by groups of 32 columns (q8_rows.h), each padded to whole groups. A tile holds
//
//   keys    the rows as the matrix [64][groups * 32] in packed form kQ8 (packed_matrix.h), so that
//           scores are a product with it: 16 positions per register
//   values  the bytes of the latent once more, [64][latent groups * 32], signed
//
// A zeroed tile has scales of zero everywhere. Bytes per position: 1.125 per key column and 1 per
// value column, padding included; f32 rows have 4 per key column.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/packed_matrix.h"

namespace mk {

inline constexpr size_t kLatentTile = 64;

struct LatentShape {
  size_t latent = 0;
  size_t shared = 0;

  size_t latent_groups() const { return Q8Groups(latent); }
  size_t groups() const { return Q8Groups(latent) + Q8Groups(shared); }
  size_t key_bytes() const {
    return PackedBytes(WeightKind::kQ8, kLatentTile, groups() * kQ8Group);
  }
  size_t value_stride() const { return latent_groups() * kQ8Group; }
  // Of a tile, a multiple of 64.
  size_t tile_bytes() const { return key_bytes() + kLatentTile * value_stride(); }
};

// Quantises row [latent + shared] to position `index` of a tile.
void StoreLatent(const LatentShape& shape, const float* row, size_t index, std::byte* tile);

}  // namespace mk
