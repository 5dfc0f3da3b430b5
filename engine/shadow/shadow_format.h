// The bytes of a sidecar of shadows, `<model file>.shadows`: a small copy of all routed experts.
// Integers and floats little-endian.
//
// A shadow has one byte per stage for sixteen consecutive weights of a row-major matrix: a row of
// the stage's codebook, [256][16] f32. The weights are the sums over the stages.
//
//   MKSH0001, of the reference engine: one stage, says nothing about its model
//      0      magic            8  u32 n, MoE layers      12  u32 layer [n], ascending
//      +0     u32 E, experts   +4 u32 G, bytes per matrix and stage (elements / 16)
//      +8     codebook         then the bytes
//   MKSH0002
//      0      magic             8  u32 n    12  u32 E    16  u32 G    20  u32 stages
//     24      fingerprint of the model, 32 hex digits
//     56      f64 mean relative error of the matrices, before the gain
//     64      f64 gain: what the trained codebooks were multiplied with
//     72      u64 XXH3-64 of all bytes before the data, with zeros here;   80..127 zero
//    128      u32 layer [n], ascending; zeros up to a multiple of 64
//             codebooks, then u64 XXH3-64 of the bytes of every expert, [n][E]
//             zeros up to a multiple of 4096, then the bytes
//   bytes: [n][E][w1, w2, w3][G][stages]; the file ends with them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/vq1.h"

namespace mk {

inline constexpr uint32_t kMaxShadowStages = 2;
inline constexpr size_t kShadowFingerprintBytes = 32;

// "MKSH0001".
std::string_view ShadowFormatName(uint32_t version);

struct ShadowInfo {
  uint32_t version = 2;  // 1: MKSH0001, 2: MKSH0002
  std::vector<uint32_t> layers;
  uint32_t experts = 0;  // E
  uint32_t groups = 0;   // G
  uint32_t stages = 1;
  std::string fingerprint;    // "" in version 1
  double relative_error = 0;  // 0 in version 1
  double gain = 1;

  size_t matrix_bytes() const { return size_t{groups} * stages; }
  size_t expert_bytes() const { return 3 * matrix_bytes(); }
  uint64_t data_bytes() const { return uint64_t{layers.size()} * experts * expert_bytes(); }
  size_t codebook_floats() const { return stages * kVq1CodebookSize; }

  // Places in the file.
  size_t codebook_offset() const;
  size_t digest_offset() const;  // version 2
  size_t data_offset() const;
  uint64_t file_bytes() const { return data_offset() + data_bytes(); }
};

// What precedes the data.
struct ShadowHead {
  ShadowInfo info;
  std::vector<float> codebooks;   // [stages][256][16]
  std::vector<uint64_t> digests;  // [n][E]; empty in version 1
};

// How many bytes of a file have to be read for DecodeShadowHead: `first` are the first 16 of them
// (fewer when there are no more). Errors: kCorrupt for what is no file of shadows or cannot be one
// of `file_bytes`.
Result<size_t> ShadowHeadBytes(std::string_view first, uint64_t file_bytes);
// `bytes`: so many. Errors: kCorrupt, kUnsupported (a version or number of stages that is not
// known).
Result<ShadowHead> DecodeShadowHead(std::string_view bytes, uint64_t file_bytes);
// info.data_offset() bytes.
std::string EncodeShadowHead(const ShadowHead& head);

}  // namespace mk
