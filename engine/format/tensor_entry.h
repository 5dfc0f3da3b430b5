// TensorEntry: one line of a container's directory. ExpertName: what an expert tensor's name says.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/format/dtype.h"

namespace mk {

inline constexpr size_t kMaxDims = 4;

struct TensorEntry {
  std::string_view name;  // points into the MkimFile
  DType dtype = DType::kF32;
  uint8_t n_dims = 0;
  std::array<uint32_t, kMaxDims> shape{};  // outermost first; n_dims entries are used
  uint64_t offset = 0;                     // bytes from the start of the file
  uint64_t size = 0;                       // bytes of the blob

  std::span<const uint32_t> dims() const { return {shape.data(), n_dims}; }
  uint64_t elements() const {
    uint64_t n = 1;
    for (const uint32_t dim : dims()) n *= dim;
    return n;
  }
};

// The three matrices of a routed expert, in the order of the file.
enum class ExpertPart : uint8_t {
  kGate = 0,  // w1 [moe_inter, routed_hidden]
  kDown = 1,  // w2 [routed_hidden, moe_inter]
  kUp = 2,    // w3 [moe_inter, routed_hidden]
};

struct ExpertName {
  uint32_t layer = 0;
  uint32_t expert = 0;
  ExpertPart part = ExpertPart::kGate;
};

// "layers.{l}.block_sparse_moe.experts.{e}.w{1..3}" (K3) or "layers.{l}.ffn.experts.{e}.w{1..3}"
// (DeepSeek-V4), decimal without leading zeros; nullopt for any other name.
std::optional<ExpertName> ParseExpertName(std::string_view name);

// "[64, 128]", for messages.
std::string DimsText(std::span<const uint32_t> dims);

}  // namespace mk
