#include "engine/pack/mkmem1.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mk {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");

constexpr uint8_t kKda = 0;
constexpr uint8_t kMla = 1;
// More layers than any model has; the field is read before anything else can be checked.
constexpr uint32_t kMaxLayers = 4096;

class Indexer {
 public:
  Indexer(const OpenedFile& file, const std::string& path) : file_(file), path_(path) {}

  Result<PackInfo> Run() {
    info_.format = PackFormat::kMkmem1;
    info_.architecture = "k3";
    info_.key.options.expanded_kv = true;
    info_.file_bytes = file_.identity.size;
    if (Status header = ReadHeader(); !header) return Fail(header.error());
    for (uint32_t layer = 0; layer < info_.shape.layers; ++layer) {
      if (Status read = ReadLayer(static_cast<uint16_t>(layer)); !read) return Fail(read.error());
    }
    const auto logits = static_cast<uint16_t>(PackSectionType::kLogits);
    if (Status read = AddVector(logits, kGlobalLayer); !read) return Fail(read.error());
    const uint32_t count = info_.sections.back().dims[0];
    if (count != 0 && count != info_.shape.vocab) {
      return Fail(DamagedPack(path_, "has logits of another vocabulary"));
    }
    if (count != 0) info_.flags |= kPackLogits;
    return std::move(info_);
  }

 private:
  // Takes the next bytes of the file.
  template <typename T>
  Status Take(T* out, size_t count = 1) {
    const uint64_t bytes = count * sizeof(T);
    if (bytes > info_.file_bytes - at_) return Fail(DamagedPack(path_, "ends early"));
    Status read = ReadAt(file_.fd.get(), at_, std::as_writable_bytes(std::span(out, count)), path_);
    at_ += bytes;
    return read;
  }

  Status ReadHeader() {
    at_ = 8;  // the magic was seen
    if (info_.file_bytes < kMkmem1HeaderBytes) return Fail(DamagedPack(path_, "ends early"));
    PackInfo::Shape& shape = info_.shape;
    for (uint32_t* field :
         {&shape.layers, &shape.hidden, &shape.kda_heads, &shape.kda_dim, &shape.vocab}) {
      if (Status read = Take(field); !read) return read;
    }
    if (shape.layers > kMaxLayers) {
      return Fail(
          DamagedPack(path_, "says that it has " + std::to_string(shape.layers) + " layers"));
    }
    shape.kinds.resize(shape.layers);
    if (Status read = Take(shape.kinds.data(), shape.kinds.size()); !read) return read;
    const bool good = std::all_of(shape.kinds.begin(), shape.kinds.end(),
                                  [](uint8_t kind) { return kind == kKda || kind == kMla; });
    return good ? Status() : Fail(DamagedPack(path_, "has layers of an unknown kind"));
  }

  Status ReadLayer(uint16_t layer) {
    uint8_t tag = 0;
    if (Status read = Take(&tag); !read) return read;
    if (tag != info_.shape.kinds[layer]) {
      return Fail(DamagedPack(path_, "has a wrong tag at layer " + std::to_string(layer)));
    }
    using enum StateArray;
    const std::array<StateArray, 4> kda = {kKdaConv, kKdaConv, kKdaConv, kKdaMatrix};
    const std::array<StateArray, 2> mla = {kExpandedKeys, kExpandedValues};
    const std::span<const StateArray> arrays =
        tag == kKda ? std::span<const StateArray>(kda) : std::span<const StateArray>(mla);
    for (const StateArray array : arrays) {
      if (Status read = AddVector(static_cast<uint16_t>(array), layer); !read) return read;
    }
    if (tag != kKda) return {};
    const uint64_t size = uint64_t{info_.shape.kda_heads} * info_.shape.kda_dim;
    uint64_t matrix;
    if (__builtin_mul_overflow(size, uint64_t{info_.shape.kda_dim}, &matrix) ||
        info_.sections.back().dims[0] != matrix) {
      return Fail(
          DamagedPack(path_, "has a matrix of the wrong size in layer " + std::to_string(layer)));
    }
    return {};
  }

  Status AddVector(uint16_t type, uint16_t layer) {
    PackSection section;
    section.type = type;
    section.layer = layer;
    section.element = StateType::kF32;
    if (Status read = Take(&section.dims[0]); !read) return read;
    section.offset = at_;
    section.bytes = uint64_t{section.dims[0]} * sizeof(float);
    if (section.bytes > info_.file_bytes - at_) return Fail(DamagedPack(path_, "ends early"));
    at_ += section.bytes;
    info_.sections.push_back(section);
    return {};
  }

  const OpenedFile& file_;
  const std::string& path_;
  uint64_t at_ = 0;
  PackInfo info_;
};

}  // namespace

bool IsMkmem1(std::span<const std::byte> start) {
  const std::string_view magic = PackFormatName(PackFormat::kMkmem1);
  return start.size() >= magic.size() && std::memcmp(start.data(), magic.data(), magic.size()) == 0;
}

Result<PackInfo> IndexMkmem1(const OpenedFile& file, const std::string& path) {
  return Indexer(file, path).Run();
}

std::string Mkmem1Header(const PackInfo::Shape& shape) {
  std::string header(PackFormatName(PackFormat::kMkmem1));
  for (const uint32_t field :
       {shape.layers, shape.hidden, shape.kda_heads, shape.kda_dim, shape.vocab}) {
    header.append(reinterpret_cast<const char*>(&field), sizeof field);
  }
  header.append(shape.kinds.begin(), shape.kinds.end());
  return header;
}

}  // namespace mk
