#include "engine/pack/pack_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "engine/format/digest.h"

namespace mk {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written as they lie");

constexpr std::string_view kMagicStem = "MKMEM";
constexpr std::string_view kMagic = "MKMEM002";
constexpr uint32_t kK3 = 1;
constexpr uint32_t kDsv4 = 2;
constexpr uint32_t kKnownFlags =
    kPackExperimental | kPackDecayed | kPackSampledModelId | kPackLogits | kPackTokens;

// Bits of the profile.
constexpr uint32_t kPrecisionBits = 0xff;
constexpr uint32_t kChunked = 0x100;
constexpr uint32_t kExpanded = 0x200;

struct Header {
  char magic[8];
  uint32_t architecture;
  uint32_t flags;
  char model[32];
  std::byte state_id[32];
  uint64_t length;
  int64_t created_ns;
  uint32_t profile;
  uint32_t rewindable;
  uint32_t sections;
  uint32_t reserved;
  uint64_t table_offset;
  uint64_t file_bytes;
  uint64_t table_digest;
  uint64_t header_digest;
};
static_assert(sizeof(Header) == kPackHeaderBytes &&
              std::has_unique_object_representations_v<Header>);

struct Entry {
  uint16_t type;
  uint16_t layer;
  uint8_t element;
  uint8_t compression;  // 0: none
  uint16_t reserved;
  uint64_t offset;
  uint64_t bytes;
  uint32_t dims[3];
  uint32_t reserved2;
  uint64_t digest;
};
static_assert(sizeof(Entry) == kPackEntryBytes && std::has_unique_object_representations_v<Entry>);

uint64_t DigestOf(const Header& header) {
  return Xxh3Of(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_digest)));
}

uint32_t ProfileOf(const SequenceOptions& options) {
  return static_cast<uint32_t>(options.precision) | (options.chunked_prefill ? kChunked : 0) |
         (options.expanded_kv ? kExpanded : 0);
}

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string HexOf(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : bytes) {
    hex += kDigits[static_cast<size_t>(byte) >> 4];
    hex += kDigits[static_cast<size_t>(byte) & 15];
  }
  return hex;
}

// Whether elements * size of the element is `bytes`, without overflow.
bool SizeFits(const PackSection& section) {
  uint64_t elements = 1;
  for (const uint32_t dim : section.dims) {
    if (__builtin_mul_overflow(elements, uint64_t{dim}, &elements)) return false;
  }
  uint64_t bytes;
  return !__builtin_mul_overflow(elements, StateTypeBytes(section.element), &bytes) &&
         bytes == section.bytes;
}

bool Known(uint8_t element) {
  const auto type = static_cast<StateType>(element);
  return type == StateType::kF32 || type == StateType::kU32 || type == StateType::kI8 ||
         type == StateType::kBytes;
}

bool Known(uint16_t type) {
  return SectionTypeName(type) != "unknown";
}

// Flags and sections agree, and nothing made by arithmetic passes for the state of a text.
Status CheckFlags(const std::string& path, const PackInfo& info) {
  const bool tokens = info.Find(PackSectionType::kTokens) != nullptr;
  const bool logits = info.Find(PackSectionType::kLogits) != nullptr;
  if (tokens != info.has_tokens() || logits != info.has_logits()) {
    return Fail(DamagedPack(path, "has flags that contradict its sections"));
  }
  if (info.experimental() && (tokens || logits)) {
    return Fail(DamagedPack(path, "is the result of arithmetic and has tokens or logits"));
  }
  return {};
}

}  // namespace

std::string_view PackFormatName(PackFormat format) {
  return format == PackFormat::kMkmem1 ? "MKMEM001" : kMagic;
}

std::string SectionTypeName(uint16_t type) {
  switch (static_cast<PackSectionType>(type)) {
    case PackSectionType::kTokens:
      return "tokens";
    case PackSectionType::kLogits:
      return "logits";
    case PackSectionType::kLineage:
      return "lineage";
    case PackSectionType::kProvenanceTokens:
      return "provenance_tokens";
  }
  return std::string(StateArrayName(static_cast<StateArray>(type)));
}

const PackSection* PackInfo::Find(PackSectionType type) const {
  const auto found = std::find_if(sections.begin(), sections.end(),
                                  [&](const PackSection& section) { return section.Is(type); });
  return found == sections.end() ? nullptr : &*found;
}

Error DamagedPack(const std::string& path, const std::string& problem) {
  return {ErrorCode::kCorrupt, path + " " + problem, "use another copy of the pack"};
}

std::array<std::byte, 32> StateIdOf(const PackInfo& info) {
  Sha256Digest digest;
  const auto add = [&](const auto& value) { digest.Update(std::as_bytes(std::span(&value, 1))); };
  digest.Update(std::as_bytes(std::span(info.fingerprint)));
  add(ProfileOf(info.key.options));
  add(static_cast<uint64_t>(info.key.length));
  for (const PackSection& section : info.sections) {
    if (section.Is(PackSectionType::kLineage)) continue;
    add(section.type);
    add(section.layer);
    add(section.dims);
    add(section.digest);
  }
  const std::string hex = digest.FinishHex();
  std::array<std::byte, 32> id;
  for (size_t i = 0; i < id.size(); ++i) {
    id[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

std::vector<std::byte> EncodePackTable(const PackInfo& info) {
  std::vector<std::byte> table(info.sections.size() * sizeof(Entry));
  std::byte* out = table.data();
  for (const PackSection& section : info.sections) {
    Entry entry{};
    entry.type = section.type;
    entry.layer = section.layer;
    entry.element = static_cast<uint8_t>(section.element);
    entry.offset = section.offset;
    entry.bytes = section.bytes;
    std::copy(section.dims.begin(), section.dims.end(), entry.dims);
    entry.digest = section.digest;
    std::memcpy(out, &entry, sizeof entry);
    out += sizeof entry;
  }
  return table;
}

std::array<std::byte, kPackHeaderBytes> EncodePackHeader(PackInfo& info,
                                                         std::span<const std::byte> table) {
  Header header{};
  std::copy(kMagic.begin(), kMagic.end(), header.magic);
  header.architecture = info.architecture == "k3" ? kK3 : kDsv4;
  header.flags = info.flags;
  std::copy_n(info.fingerprint.begin(), std::min<size_t>(info.fingerprint.size(), 32),
              header.model);
  const std::array<std::byte, 32> id = StateIdOf(info);
  std::copy(id.begin(), id.end(), header.state_id);
  info.state_id = HexOf(id);
  header.length = info.key.length;
  header.created_ns = info.created_ns;
  header.profile = ProfileOf(info.key.options);
  header.rewindable = static_cast<uint32_t>(info.key.rewindable);
  header.sections = static_cast<uint32_t>(info.sections.size());
  header.table_offset = AlignPackOffset(sizeof header);
  header.file_bytes = info.file_bytes;
  header.table_digest = Xxh3Of(table);
  header.header_digest = DigestOf(header);
  std::array<std::byte, kPackHeaderBytes> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

Result<PackTablePlace> DecodePackHeader(std::span<const std::byte> bytes, uint64_t file_bytes,
                                        const std::string& path, PackInfo& info) {
  Header header{};
  std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof header));
  const std::string_view magic(header.magic, sizeof header.magic);
  if (!magic.starts_with(kMagicStem)) {
    return Fail(ErrorCode::kInvalidArgument, path + " is not a memory pack",
                "name a file that was saved with --save");
  }
  if (magic != kMagic) {
    return Fail(ErrorCode::kUnsupported,
                path + " is a pack of another version of the format than this build reads",
                "use the build that wrote it, or a newer one");
  }
  if (bytes.size() < sizeof header) return Fail(DamagedPack(path, "ends within its header"));
  if (header.header_digest != DigestOf(header)) {
    return Fail(DamagedPack(path, "has a damaged header"));
  }
  if (header.file_bytes != file_bytes) {
    return Fail(DamagedPack(path, "has " + std::to_string(file_bytes) + " bytes, not " +
                                      std::to_string(header.file_bytes)));
  }
  if (header.architecture != kK3 && header.architecture != kDsv4) {
    return Fail(ErrorCode::kUnsupported, path + " is a pack of an unknown architecture",
                "use the build that wrote it");
  }
  const uint32_t precision = header.profile & kPrecisionBits;
  if (precision >= kPrecisions ||
      (header.profile & ~(kPrecisionBits | kChunked | kExpanded)) != 0 ||
      (header.flags & ~kKnownFlags) != 0) {
    return Fail(ErrorCode::kUnsupported, path + " has features that this build does not know",
                "use the build that wrote it, or a newer one");
  }
  const std::string_view model(header.model, sizeof header.model);
  if (!IsHex(model) || header.reserved != 0 || header.sections > kMaxPackSections) {
    return Fail(DamagedPack(path, "has a header that no build writes"));
  }
  PackTablePlace place{header.table_offset, header.sections * uint64_t{sizeof(Entry)},
                       header.table_digest};
  if (place.offset < sizeof header || place.offset > file_bytes ||
      place.bytes > file_bytes - place.offset) {
    return Fail(DamagedPack(path, "has its table outside of the file"));
  }
  info.format = PackFormat::kMkmem2;
  info.architecture = header.architecture == kK3 ? "k3" : "deepseek_v4";
  info.fingerprint = model;
  info.state_id = HexOf(header.state_id);
  info.key.options.precision = static_cast<Precision>(precision);
  info.key.options.chunked_prefill = (header.profile & kChunked) != 0;
  info.key.options.expanded_kv = (header.profile & kExpanded) != 0;
  info.key.length = header.length;
  info.key.rewindable = header.rewindable;
  info.created_ns = header.created_ns;
  info.flags = header.flags;
  info.file_bytes = file_bytes;
  return place;
}

Status DecodePackTable(std::span<const std::byte> table, const PackTablePlace& place,
                       const std::string& path, PackInfo& info) {
  if (Xxh3Of(table) != place.digest) return Fail(DamagedPack(path, "has a damaged table"));
  // Sections lie behind the table, one after the other.
  uint64_t end = place.offset + place.bytes;
  for (size_t at = 0; at < table.size(); at += sizeof(Entry)) {
    Entry entry;
    std::memcpy(&entry, table.data() + at, sizeof entry);
    PackSection section;
    section.type = entry.type;
    section.layer = entry.layer;
    section.offset = entry.offset;
    section.bytes = entry.bytes;
    std::copy_n(entry.dims, 3, section.dims.begin());
    section.digest = entry.digest;
    if (entry.offset < end || entry.offset > info.file_bytes ||
        entry.bytes > info.file_bytes - entry.offset) {
      return Fail(DamagedPack(path, "has a section outside of its place in the file"));
    }
    end = entry.offset + entry.bytes;
    const bool readable = Known(entry.element) && entry.compression == 0;
    if (!Known(entry.type) || !readable) {
      if (!Known(entry.type) && (entry.type & kMustUnderstand) == 0) continue;
      return Fail(ErrorCode::kUnsupported,
                  path + " has a section of type " + std::to_string(entry.type) +
                      " that this build cannot read",
                  "use the build that wrote it, or a newer one");
    }
    section.element = static_cast<StateType>(entry.element);
    if (!SizeFits(section)) {
      return Fail(DamagedPack(path, "has a section whose size is not that of its contents"));
    }
    const auto global = static_cast<PackSectionType>(section.type);
    if (section.layer == kGlobalLayer && info.Find(global) != nullptr) {
      return Fail(DamagedPack(path, "has two sections of " + SectionTypeName(section.type)));
    }
    info.sections.push_back(section);
  }
  return CheckFlags(path, info);
}

}  // namespace mk
