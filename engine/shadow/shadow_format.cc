#include "engine/shadow/shadow_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "engine/format/config_limits.h"
#include "engine/format/digest.h"

namespace mk {
namespace {

constexpr std::string_view kMagic1 = "MKSH0001";
constexpr std::string_view kMagic2 = "MKSH0002";
constexpr size_t kFixed2 = 128;
constexpr size_t kDigestAt = 72;
constexpr size_t kFirstBytes = 16;
constexpr size_t kCodebookBytes = kVq1CodebookSize * sizeof(float);
static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr size_t RoundUp(size_t offset, size_t to) {
  return (offset + to - 1) / to * to;
}

template <typename T>
T Load(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <typename T>
void Store(std::string& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
std::vector<T> LoadAll(std::string_view bytes, size_t at, size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes.data() + at, count * sizeof(T));
  return values;
}

template <typename T>
void StoreAll(std::string& bytes, size_t at, const std::vector<T>& values) {
  std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(T));
}

tl::unexpected<Error> Bad(const std::string& problem) {
  return Fail(ErrorCode::kCorrupt, problem, "build the shadows again with `mk shadow`");
}

// Whether all numbers are such as a model can have, and the file has the length that they imply.
Status CheckInfo(const ShadowInfo& info, uint64_t file_bytes) {
  const bool sizes = info.experts >= 1 && info.experts <= kMaxExperts && info.groups >= 1 &&
                     info.groups <= uint64_t{kMaxWidth} * kMaxWidth / kVq1Group;
  if (!sizes) return Bad("its number of experts or the size of their matrices cannot be");
  const bool ascending = std::adjacent_find(info.layers.begin(), info.layers.end(),
                                            std::greater_equal<>()) == info.layers.end();
  if (!ascending || info.layers.back() >= kMaxLayers) return Bad("its list of layers cannot be");
  // Every factor is bounded, and so is their product: 2^12 2^16 3 2^32 2 is below 2^63.
  if (info.file_bytes() != file_bytes) {
    return Bad("has " + std::to_string(file_bytes) + " bytes and should have " +
               std::to_string(info.file_bytes()));
  }
  return {};
}

Status CheckCodebooks(const std::vector<float>& codebooks) {
  const auto finite = [](float value) { return std::isfinite(value); };
  return std::ranges::all_of(codebooks, finite) ? Status() : Bad("its codebook is not finite");
}

Result<ShadowHead> DecodeVersion1(std::string_view bytes, uint64_t file_bytes) {
  ShadowHead head;
  ShadowInfo& info = head.info;
  info.version = 1;
  const auto n = Load<uint32_t>(bytes, 8);
  info.layers = LoadAll<uint32_t>(bytes, 12, n);
  info.experts = Load<uint32_t>(bytes, 12 + size_t{n} * 4);
  info.groups = Load<uint32_t>(bytes, 16 + size_t{n} * 4);
  if (Status good = CheckInfo(info, file_bytes); !good) return Fail(good.error());
  head.codebooks = LoadAll<float>(bytes, info.codebook_offset(), kVq1CodebookSize);
  if (Status good = CheckCodebooks(head.codebooks); !good) return Fail(good.error());
  return head;
}

// XXH3-64 of a head without its own digest.
uint64_t DigestOfHead(std::string head) {
  Store(head, kDigestAt, uint64_t{0});
  return Xxh3Of(std::as_bytes(std::span(head)));
}

Result<ShadowHead> DecodeVersion2(std::string_view bytes, uint64_t file_bytes) {
  ShadowHead head;
  ShadowInfo& info = head.info;
  const auto n = Load<uint32_t>(bytes, 8);
  info.experts = Load<uint32_t>(bytes, 12);
  info.groups = Load<uint32_t>(bytes, 16);
  info.stages = Load<uint32_t>(bytes, 20);
  info.fingerprint = bytes.substr(24, kShadowFingerprintBytes);
  info.relative_error = Load<double>(bytes, 56);
  info.gain = Load<double>(bytes, 64);
  if (Load<uint64_t>(bytes, kDigestAt) != DigestOfHead(std::string(bytes))) {
    return Bad("its head is damaged");
  }
  info.layers = LoadAll<uint32_t>(bytes, kFixed2, n);
  if (Status good = CheckInfo(info, file_bytes); !good) return Fail(good.error());
  if (!std::isfinite(info.relative_error) || !std::isfinite(info.gain)) {
    return Bad("its error or gain is not finite");
  }
  head.codebooks = LoadAll<float>(bytes, info.codebook_offset(), info.codebook_floats());
  if (Status good = CheckCodebooks(head.codebooks); !good) return Fail(good.error());
  head.digests = LoadAll<uint64_t>(bytes, info.digest_offset(), n * size_t{info.experts});
  return head;
}

}  // namespace

std::string_view ShadowFormatName(uint32_t version) {
  return version == 1 ? kMagic1 : kMagic2;
}

size_t ShadowInfo::codebook_offset() const {
  return version == 1 ? 20 + layers.size() * 4 : RoundUp(kFixed2 + layers.size() * 4, 64);
}

size_t ShadowInfo::digest_offset() const {
  return codebook_offset() + stages * kCodebookBytes;
}

size_t ShadowInfo::data_offset() const {
  if (version == 1) return digest_offset();
  return RoundUp(digest_offset() + layers.size() * experts * sizeof(uint64_t), 4096);
}

Result<size_t> ShadowHeadBytes(std::string_view first, uint64_t file_bytes) {
  const bool one = first.starts_with(kMagic1);
  if (first.size() < kFirstBytes || (!one && !first.starts_with(kMagic2))) {
    return Bad("is no file of shadows");
  }
  ShadowInfo info;
  info.version = one ? 1 : 2;
  const auto n = Load<uint32_t>(first, 8);
  if (n == 0 || n > kMaxLayers) return Bad("its list of layers cannot be");
  info.layers.resize(n);
  info.experts = one ? 1 : Load<uint32_t>(first, 12);
  // The number of stages lies further on; whatever it is, the head is no longer than this.
  info.stages = one ? 1 : kMaxShadowStages;
  if (info.experts == 0 || info.experts > kMaxExperts)
    return Bad("its number of experts cannot be");
  const size_t smallest = one ? info.data_offset() : kFixed2;
  if (file_bytes < smallest) return Bad("ends too early");
  return static_cast<size_t>(std::min<uint64_t>(file_bytes, info.data_offset()));
}

Result<ShadowHead> DecodeShadowHead(std::string_view bytes, uint64_t file_bytes) {
  const Result<size_t> needed = ShadowHeadBytes(bytes.substr(0, kFirstBytes), file_bytes);
  if (!needed) return Fail(needed.error());
  if (bytes.size() < *needed) return Bad("ends too early");
  if (bytes.starts_with(kMagic1)) return DecodeVersion1(bytes, file_bytes);
  ShadowInfo info;
  info.layers.resize(Load<uint32_t>(bytes, 8));
  info.experts = Load<uint32_t>(bytes, 12);
  info.stages = Load<uint32_t>(bytes, 20);
  if (info.stages == 0 || info.stages > kMaxShadowStages) {
    return Fail(ErrorCode::kUnsupported,
                "has " + std::to_string(info.stages) + " stages, this build knows 1 and 2",
                "build the shadows again with `mk shadow`");
  }
  if (bytes.size() < info.data_offset()) return Bad("ends too early");
  return DecodeVersion2(bytes.substr(0, info.data_offset()), file_bytes);
}

std::string EncodeShadowHead(const ShadowHead& head) {
  const ShadowInfo& info = head.info;
  std::string bytes(info.data_offset(), '\0');
  const auto n = static_cast<uint32_t>(info.layers.size());
  Store(bytes, 8, n);
  StoreAll(bytes, info.codebook_offset(), head.codebooks);
  if (info.version == 1) {
    std::ranges::copy(kMagic1, bytes.begin());
    StoreAll(bytes, 12, info.layers);
    Store(bytes, 12 + size_t{n} * 4, info.experts);
    Store(bytes, 16 + size_t{n} * 4, info.groups);
    return bytes;
  }
  std::ranges::copy(kMagic2, bytes.begin());
  Store(bytes, 12, info.experts);
  Store(bytes, 16, info.groups);
  Store(bytes, 20, info.stages);
  std::ranges::copy(info.fingerprint, bytes.begin() + 24);
  Store(bytes, 56, info.relative_error);
  Store(bytes, 64, info.gain);
  StoreAll(bytes, kFixed2, info.layers);
  StoreAll(bytes, info.digest_offset(), head.digests);
  Store(bytes, kDigestAt, DigestOfHead(bytes));
  return bytes;
}

}  // namespace mk
