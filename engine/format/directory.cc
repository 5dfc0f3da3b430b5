#include "engine/format/directory.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/base/file.h"

namespace mk {
namespace {

constexpr size_t kMagicBytes = 8;
// Shortest entry: an empty name, one dim would be 24; a count beyond this bound cannot be true.
constexpr uint64_t kMinEntryBytes = 22;

tl::unexpected<Error> Corrupt(const std::string& path, const std::string& problem) {
  return Fail(ErrorCode::kCorrupt, path + ": " + problem,
              "the file is damaged or was written wrongly; copy it again or build it anew");
}

template <typename T>
T Load(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Grows `bytes` as the header turns out to be longer.
class HeaderBytes {
 public:
  HeaderBytes(int fd, uint64_t file_size, const std::string& path)
      : fd_(fd), file_size_(file_size), path_(path) {}

  // Makes the first `count` bytes available.
  Status Need(uint64_t count) {
    constexpr uint64_t kChunk = 1 << 20;
    if (count <= bytes_.size()) return {};
    if (count > file_size_) {
      return Corrupt(path_, "the header needs " + std::to_string(count) + " bytes, the file has " +
                                std::to_string(file_size_));
    }
    const uint64_t have = bytes_.size();
    const uint64_t want = std::min(file_size_, std::max(count, have + kChunk));
    bytes_.resize(want);
    return ReadAt(fd_, have, std::as_writable_bytes(std::span(bytes_)).subspan(have), path_);
  }
  std::string_view view() const { return bytes_; }
  std::string TakeFirst(uint64_t count) {
    bytes_.resize(count);
    bytes_.shrink_to_fit();
    return std::move(bytes_);
  }

 private:
  int fd_;
  uint64_t file_size_;
  const std::string& path_;
  std::string bytes_;
};

struct Prologue {
  int version = 2;
  uint64_t config_at = 0;
  uint64_t config_bytes = 0;
  uint64_t count_at = 0;  // P: where the number of tensors is
};

Result<Prologue> ReadPrologue(std::string_view bytes, uint64_t file_size, const std::string& path) {
  Prologue prologue;
  const std::string_view magic = bytes.substr(0, kMagicBytes);
  if (magic == kMagicV1) {
    prologue.version = 1;
    prologue.config_at = prologue.count_at = kMagicBytes;
    return prologue;
  }
  if (magic != kMagicV2) {
    return Fail(ErrorCode::kCorrupt,
                path + ": not a model file, it does not start with MKIM0001 or MKIM0002",
                "name an MKIM .bin file");
  }
  const auto length = Load<uint32_t>(bytes, kMagicBytes);
  prologue.config_at = kMagicBytes + 4;
  prologue.config_bytes = length;
  prologue.count_at = prologue.config_at + length;
  if (length > kMaxConfigBytes) {
    return Corrupt(path, "config_len is " + std::to_string(length) + ", more than " +
                             std::to_string(kMaxConfigBytes));
  }
  if (prologue.count_at + 4 > file_size) {
    return Corrupt(path, "config_len " + std::to_string(length) +
                             " reaches beyond the end of the " + std::to_string(file_size) +
                             " byte file");
  }
  return prologue;
}

Status CheckCount(uint64_t count, uint64_t count_at, uint64_t file_size, const std::string& path) {
  if (count > kMaxTensors || count * kMinEntryBytes > file_size - count_at - 4) {
    return Corrupt(path, "n_tensors is " + std::to_string(count) + ", too many for a file of " +
                             std::to_string(file_size) + " bytes");
  }
  return {};
}

std::string Which(uint64_t index) {
  return "directory entry " + std::to_string(index);
}

// Reads the entry at `at`, which lies inside `header`, and moves `at` behind it.
Result<TensorEntry> ParseEntry(std::string_view header, uint64_t index, uint64_t& at,
                               const std::string& path) {
  TensorEntry entry;
  const auto name_bytes = Load<uint16_t>(header, at);
  entry.name = header.substr(at + 2, name_bytes);
  if (!std::all_of(entry.name.begin(), entry.name.end(),
                   [](char c) { return c >= 32 && c < 127; })) {
    return Corrupt(path, Which(index) + ": the name holds bytes that are not printable ASCII");
  }
  at += 2 + name_bytes;
  const std::string tensor = "tensor '" + std::string(entry.name) + "'";
  const auto code = Load<uint8_t>(header, at);
  const std::optional<DType> dtype = DTypeFromCode(code);
  if (!dtype) {
    return Fail(ErrorCode::kUnsupported,
                path + ": " + tensor + " has dtype code " + std::to_string(code) +
                    ", which this engine does not know",
                "update the engine, or export the model with dtypes 0 to 4 or 16");
  }
  entry.dtype = *dtype;
  entry.n_dims = Load<uint8_t>(header, at + 1);
  at += 2;
  for (size_t d = 0; d < entry.n_dims; ++d, at += 4) entry.shape[d] = Load<uint32_t>(header, at);
  entry.offset = Load<uint64_t>(header, at);
  entry.size = Load<uint64_t>(header, at + 8);
  at += 16;
  if (!ElementCount(entry.dims())) {
    return Corrupt(path, tensor + " has dims " + DimsText(entry.dims()) +
                             ": every dim must be at least 1 and their product at most 2^48");
  }
  return entry;
}

Status CheckSize(const TensorEntry& entry, const std::string& path) {
  const std::string tensor = "tensor '" + std::string(entry.name) + "'";
  const std::optional<uint64_t> bytes = BlobBytes(entry.dtype, entry.dims());
  if (!bytes) {
    return Corrupt(path, tensor + " is " + std::string(DTypeName(entry.dtype)) + " with dims " +
                             DimsText(entry.dims()) +
                             ": it needs two dims and columns in multiples of " +
                             std::to_string(ColumnGroup(entry.dtype)));
  }
  if (*bytes != entry.size) {
    return Corrupt(path, tensor + " has size " + std::to_string(entry.size) + ", but " +
                             std::string(DTypeName(entry.dtype)) + " " + DimsText(entry.dims()) +
                             " takes " + std::to_string(*bytes) + " bytes");
  }
  return {};
}

Status CheckRange(const TensorEntry& entry, uint64_t data_start, uint64_t file_size,
                  const std::string& path) {
  const std::string tensor = "tensor '" + std::string(entry.name) + "'";
  if (entry.offset < data_start) {
    return Corrupt(path, tensor + " has offset " + std::to_string(entry.offset) +
                             ", inside the header of " + std::to_string(data_start) + " bytes");
  }
  if (entry.offset > file_size || entry.size > file_size - entry.offset) {
    return Corrupt(path, tensor + " (offset " + std::to_string(entry.offset) + ", size " +
                             std::to_string(entry.size) + ") reaches beyond the end of the " +
                             std::to_string(file_size) + " byte file");
  }
  return {};
}

// Bytes that a value of this type must at least be aligned to.
uint64_t NaturalAlignment(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
      return 2;
    default:
      return 1;
  }
}

Status CheckAlignment(const TensorEntry& entry, const std::string& path, uint64_t& loose) {
  const uint64_t natural = NaturalAlignment(entry.dtype);
  if (natural == 1 || entry.offset % kBlobAlignment == 0) return {};
  if (entry.offset % natural == 0) {
    ++loose;
    return {};
  }
  return Corrupt(path, "tensor '" + std::string(entry.name) + "' has offset " +
                           std::to_string(entry.offset) + ", not a multiple of " +
                           std::to_string(natural));
}

Status CheckOverlap(const std::vector<TensorEntry>& entries, const std::string& path) {
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto by_offset = [&](uint32_t a, uint32_t b) {
    return entries[a].offset < entries[b].offset;
  };
  // Known writers store blobs in directory order.
  if (!std::is_sorted(order.begin(), order.end(), by_offset)) {
    std::sort(order.begin(), order.end(), by_offset);
  }
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorEntry& before = entries[order[i - 1]];
    const TensorEntry& after = entries[order[i]];
    if (before.offset + before.size > after.offset) {
      return Corrupt(path, "tensors '" + std::string(before.name) + "' and '" +
                               std::string(after.name) + "' overlap at byte " +
                               std::to_string(after.offset));
    }
  }
  return {};
}

}  // namespace

Result<std::string> ReadHeader(int fd, uint64_t file_size, const std::string& path) {
  if (file_size < 16) {
    return Corrupt(path, "only " + std::to_string(file_size) + " bytes, too short for a model");
  }
  HeaderBytes bytes(fd, file_size, path);
  Status status = bytes.Need(16);
  if (!status) return Fail(status.error());
  const auto prologue = ReadPrologue(bytes.view(), file_size, path);
  if (!prologue) return Fail(prologue.error());
  uint64_t at = prologue->count_at + 4;
  status = bytes.Need(at);
  if (!status) return Fail(status.error());
  const auto count = Load<uint32_t>(bytes.view(), prologue->count_at);
  status = CheckCount(count, prologue->count_at, file_size, path);
  if (!status) return Fail(status.error());
  for (uint32_t i = 0; i < count; ++i) {
    if (!(status = bytes.Need(at + 2))) return Fail(status.error());
    const auto name_bytes = Load<uint16_t>(bytes.view(), at);
    if (name_bytes < 1 || name_bytes > kMaxNameBytes) {
      return Corrupt(path, Which(i) + ": name_len is " + std::to_string(name_bytes) +
                               ", it must be 1 to " + std::to_string(kMaxNameBytes));
    }
    at += 2 + name_bytes + 2;
    if (!(status = bytes.Need(at))) return Fail(status.error());
    const auto n_dims = Load<uint8_t>(bytes.view(), at - 1);
    if (n_dims < 1 || n_dims > kMaxDims) {
      return Corrupt(path, Which(i) + ": n_dims is " + std::to_string(n_dims) +
                               ", it must be 1 to " + std::to_string(kMaxDims));
    }
    at += 4 * n_dims + 16;
    if (!(status = bytes.Need(at))) return Fail(status.error());
  }
  return bytes.TakeFirst(at);
}

Result<Directory> ParseHeader(std::string_view header, uint64_t file_size,
                              const std::string& path) {
  const auto prologue = ReadPrologue(header, file_size, path);
  if (!prologue) return Fail(prologue.error());
  Directory directory;
  directory.version = prologue->version;
  directory.config_json = header.substr(prologue->config_at, prologue->config_bytes);
  const auto count = Load<uint32_t>(header, prologue->count_at);
  directory.entries.reserve(count);
  uint64_t at = prologue->count_at + 4;
  uint64_t loose = 0;
  for (uint32_t i = 0; i < count; ++i) {
    auto entry = ParseEntry(header, i, at, path);
    if (!entry) return Fail(entry.error());
    Status status = CheckSize(*entry, path);
    if (status) status = CheckRange(*entry, header.size(), file_size, path);
    if (status) status = CheckAlignment(*entry, path, loose);
    if (!status) return Fail(status.error());
    directory.entries.push_back(*entry);
  }
  const Status overlap = CheckOverlap(directory.entries, path);
  if (!overlap) return Fail(overlap.error());
  if (loose > 0) {
    directory.warnings.push_back(std::to_string(loose) +
                                 " tensors are not aligned to 64 bytes; they load more slowly");
  }
  return directory;
}

}  // namespace mk
