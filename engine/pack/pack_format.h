// Pack files: what is common to both formats, and the bytes of MKMEM002 (docs/packs.md).
//
// A pack holds the state of one sequence. Packs of either format are described by the same
// PackInfo; DescribePack (pack_file.h) makes it from the bytes of a file.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/model.h"
#include "engine/model/state.h"

namespace mk {

enum class PackFormat : uint8_t {
  kMkmem1 = 1,  // of the reference engine, K3 only
  kMkmem2 = 2,
};
// "MKMEM001".
std::string_view PackFormatName(PackFormat format);

// Kinds of sections beside those of StateArray.
enum class PackSectionType : uint16_t {
  kTokens = 2,            // u32 [n]
  kLogits = 4,            // f32 [vocab]: for the token after the last one
  kLineage = 6,           // bytes: JSON
  kProvenanceTokens = 7,  // u32 [n]: of the first parent; not what the state is the state of
};
// A section with this bit that a reader does not know makes the file unreadable for it.
inline constexpr uint16_t kMustUnderstand = 0x8000;
// The layer of sections that belong to none.
inline constexpr uint16_t kGlobalLayer = 0xffff;

enum PackFlag : uint32_t {
  kPackExperimental = 2,  // made by arithmetic on states
  kPackDecayed = 4,
  kPackSampledModelId = 8,  // the id of the model covers samples of its contents
  kPackLogits = 16,
  kPackTokens = 32,
};

struct PackSection {
  uint16_t type = 0;
  uint16_t layer = kGlobalLayer;
  StateType element = StateType::kBytes;
  std::array<uint32_t, 3> dims = {1, 1, 1};
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint64_t digest = 0;  // XXH3-64; MKMEM002 only

  bool Is(PackSectionType wanted) const { return type == static_cast<uint16_t>(wanted); }
  bool Is(StateArray wanted) const { return type == static_cast<uint16_t>(wanted); }
};
// "kda_matrix", "tokens".
std::string SectionTypeName(uint16_t type);

struct PackInfo {
  PackFormat format = PackFormat::kMkmem2;
  std::string architecture;  // as ModelInfo
  std::string fingerprint;   // of the model, 32 hex digits; empty in MKMEM001
  std::string state_id;      // 64 hex digits; empty in MKMEM001
  StateKey key;              // MKMEM001: expanded rows in any precision
  int64_t created_ns = 0;    // since 1970; 0 in MKMEM001
  uint32_t flags = 0;
  uint64_t file_bytes = 0;
  std::vector<PackSection> sections;

  // MKMEM001 only: what it says of the model.
  struct Shape {
    uint32_t layers = 0;
    uint32_t hidden = 0;
    uint32_t kda_heads = 0;
    uint32_t kda_dim = 0;
    uint32_t vocab = 0;
    std::vector<uint8_t> kinds;  // [layers]: 0 KDA, 1 MLA
    bool operator==(const Shape&) const = default;
  } shape;

  bool experimental() const { return (flags & kPackExperimental) != 0; }
  bool decayed() const { return (flags & kPackDecayed) != 0; }
  bool has_tokens() const { return (flags & kPackTokens) != 0; }
  bool has_logits() const { return (flags & kPackLogits) != 0; }
  // Null when there is none.
  const PackSection* Find(PackSectionType type) const;
};

// ---- The bytes of MKMEM002 ----

inline constexpr size_t kPackHeaderBytes = 144;
inline constexpr size_t kPackEntryBytes = 48;
inline constexpr size_t kPackAlignment = 64;
// More than any model needs: readers refuse tables beyond it.
inline constexpr uint32_t kMaxPackSections = 1 << 16;

constexpr uint64_t AlignPackOffset(uint64_t offset) {
  return (offset + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
}

// The state id that a header must have: SHA-256 over model, profile, length and the sections that
// are not lineage. Raw bytes.
std::array<std::byte, 32> StateIdOf(const PackInfo& info);

// Header and table; sets info.state_id.
std::vector<std::byte> EncodePackTable(const PackInfo& info);
std::array<std::byte, kPackHeaderBytes> EncodePackHeader(PackInfo& info,
                                                         std::span<const std::byte> table);

// Where the table of a header lies.
struct PackTablePlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t digest = 0;
};
// Reads a header of a file of `file_bytes`; `info` gets everything but its sections. kCorrupt,
// kUnsupported (a newer version), kInvalidArgument (not a pack). `path` is for messages.
Result<PackTablePlace> DecodePackHeader(std::span<const std::byte> header, uint64_t file_bytes,
                                        const std::string& path, PackInfo& info);
// Reads the table: types, sizes and places of the sections, all within the file and apart. Errors
// as above.
Status DecodePackTable(std::span<const std::byte> table, const PackTablePlace& place,
                       const std::string& path, PackInfo& info);

// "PATH is torn", and the like.
Error DamagedPack(const std::string& path, const std::string& problem);

}  // namespace mk
