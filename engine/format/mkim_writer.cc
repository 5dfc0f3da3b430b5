#include "engine/format/mkim_writer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "engine/format/directory.h"

namespace mk {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLargeRecord = 64 * 1024;

tl::unexpected<Error> Bad(const std::string& problem) {
  return Fail(ErrorCode::kInvalidArgument, "cannot lay out the model file: " + problem);
}

uint64_t RoundUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

template <typename T>
void Append(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  out.append(bytes.data(), bytes.size());
}

Status CheckSpec(const TensorSpec& spec) {
  if (spec.name.empty() || spec.name.size() > kMaxNameBytes ||
      !std::all_of(spec.name.begin(), spec.name.end(), [](char c) { return c >= 32 && c < 127; })) {
    return Bad("a tensor name must be 1 to 512 printable ASCII characters, not '" + spec.name +
               "'");
  }
  if (spec.dims.empty() || spec.dims.size() > kMaxDims || !BlobBytes(spec.dtype, spec.dims)) {
    return Bad("tensor '" + spec.name + "' cannot be " + std::string(DTypeName(spec.dtype)) + " " +
               DimsText(spec.dims));
  }
  return {};
}

// Bytes from the start of w1 to the end of w3, when the tensors at `first` are one expert's record.
std::optional<uint64_t> RecordBytes(std::span<const TensorSpec> tensors, size_t first) {
  if (first + 3 > tensors.size()) return std::nullopt;
  const auto head = ParseExpertName(tensors[first].name);
  if (!head || head->part != ExpertPart::kGate) return std::nullopt;
  uint64_t end = 0;
  for (size_t i = 0; i < 3; ++i) {
    const auto name = ParseExpertName(tensors[first + i].name);
    if (!name || name->layer != head->layer || name->expert != head->expert ||
        name->part != static_cast<ExpertPart>(i)) {
      return std::nullopt;
    }
    end = RoundUp(end, kBlobAlignment) +
          *BlobBytes(tensors[first + i].dtype, tensors[first + i].dims);
  }
  return end;
}

// Alignment of every tensor: that of its record for w1, 64 inside a record and for the spine. An
// expert matrix outside a record is aligned as a record of its own.
std::vector<uint64_t> Alignments(std::span<const TensorSpec> tensors, ExpertAlign align) {
  std::vector<uint64_t> out(tensors.size(), kBlobAlignment);
  const auto record_alignment = [align](uint64_t bytes) {
    if (align == ExpertAlign::kAuto) return bytes >= kLargeRecord ? kPage : kBlobAlignment;
    return static_cast<uint64_t>(align);
  };
  for (size_t i = 0; i < tensors.size();) {
    if (!ParseExpertName(tensors[i].name)) {
      ++i;
      continue;
    }
    const std::optional<uint64_t> record = RecordBytes(tensors, i);
    out[i] = record_alignment(record.value_or(*BlobBytes(tensors[i].dtype, tensors[i].dims)));
    i += record ? 3 : 1;
  }
  return out;
}

uint64_t HeaderBytes(std::string_view config_json, std::span<const TensorSpec> tensors) {
  uint64_t bytes = kMagicV2.size() + (config_json.empty() ? 0 : 4 + config_json.size()) + 4;
  for (const TensorSpec& spec : tensors) bytes += 20 + spec.name.size() + 4 * spec.dims.size();
  return bytes;
}

}  // namespace

Result<MkimLayout> PlanLayout(std::string_view config_json, std::span<const TensorSpec> tensors,
                              ExpertAlign align) {
  if (config_json.size() > kMaxConfigBytes) return Bad("the config is longer than 16 MiB");
  if (tensors.size() > kMaxTensors) return Bad("more than 4194304 tensors");
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorSpec& spec : tensors) {
    const Status status = CheckSpec(spec);
    if (!status) return Fail(status.error());
    if (!names.insert(spec.name).second) return Bad("tensor '" + spec.name + "' is declared twice");
  }
  MkimLayout layout;
  layout.header.reserve(HeaderBytes(config_json, tensors));
  layout.header += config_json.empty() ? kMagicV1 : kMagicV2;
  if (!config_json.empty()) {
    Append(layout.header, static_cast<uint32_t>(config_json.size()));
    layout.header += config_json;
  }
  Append(layout.header, static_cast<uint32_t>(tensors.size()));
  const std::vector<uint64_t> alignments = Alignments(tensors, align);
  uint64_t position = HeaderBytes(config_json, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& spec = tensors[i];
    const uint64_t size = *BlobBytes(spec.dtype, spec.dims);
    position = RoundUp(position, alignments[i]);
    Append(layout.header, static_cast<uint16_t>(spec.name.size()));
    layout.header += spec.name;
    Append(layout.header, static_cast<uint8_t>(spec.dtype));
    Append(layout.header, static_cast<uint8_t>(spec.dims.size()));
    for (const uint32_t dim : spec.dims) Append(layout.header, dim);
    Append(layout.header, position);
    Append(layout.header, size);
    layout.blobs.push_back({position, size});
    (ParseExpertName(spec.name) ? layout.expert_bytes : layout.spine_bytes) += size;
    position += size;
  }
  layout.file_bytes = position;
  return layout;
}

MkimWriter::MkimWriter(MkimLayout layout, std::vector<TensorSpec> tensors, AtomicFile file,
                       Options options)
    : layout_(std::move(layout)),
      tensors_(std::move(tensors)),
      file_(std::move(file)),
      options_(std::move(options)),
      written_(tensors_.size()) {}

Result<std::unique_ptr<MkimWriter>> MkimWriter::Create(const std::string& path,
                                                       std::string_view config_json,
                                                       std::span<const TensorSpec> tensors) {
  return Create(path, config_json, tensors, Options());
}

Result<std::unique_ptr<MkimWriter>> MkimWriter::Create(const std::string& path,
                                                       std::string_view config_json,
                                                       std::span<const TensorSpec> tensors,
                                                       const Options& options) {
  if (!options.replace && ::access(path.c_str(), F_OK) == 0) {
    return Fail(ErrorCode::kInvalidArgument, path + " exists already",
                "choose another name, or replace it with --force");
  }
  auto layout = PlanLayout(config_json, tensors, options.align);
  if (!layout) return Fail(layout.error());
  const auto free = FreeSpaceFor(path);
  if (!free) return Fail(free.error());
  if (*free < layout->file_bytes) {
    return Fail(ErrorCode::kIo,
                path + " needs " + std::to_string(layout->file_bytes) + " bytes, the disk has " +
                    std::to_string(*free) + " left",
                "free some disk space or write to another disk");
  }
  auto file = AtomicFile::Create(path);
  if (!file) return Fail(file.error());
  Status status = file->Allocate(layout->file_bytes);
  if (status) status = file->WriteAt(0, std::as_bytes(std::span(layout->header)));
  if (!status) return Fail(status.error());
  return std::unique_ptr<MkimWriter>(new MkimWriter(
      std::move(*layout), {tensors.begin(), tensors.end()}, std::move(*file), options));
}

Status MkimWriter::WriteBlob(size_t tensor, std::span<const std::byte> blob) {
  if (tensor < tensors_.size() && blob.size() != layout_.blobs[tensor].size) {
    return Fail(ErrorCode::kInvalidArgument, "tensor '" + tensors_[tensor].name + "' takes " +
                                                 std::to_string(layout_.blobs[tensor].size) +
                                                 " bytes, not " + std::to_string(blob.size()));
  }
  return WriteBlobRange(tensor, 0, blob);
}

Status MkimWriter::WriteBlobRange(size_t tensor, uint64_t first, std::span<const std::byte> bytes) {
  if (tensor >= tensors_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                "no tensor " + std::to_string(tensor) + " was declared");
  }
  const MkimLayout::Blob& blob = layout_.blobs[tensor];
  if (first > blob.size || bytes.size() > blob.size - first) {
    return Fail(ErrorCode::kInvalidArgument,
                "bytes beyond the end of tensor '" + tensors_[tensor].name + "'");
  }
  const Status written = file_.WriteAt(blob.offset + first, bytes);
  if (written) written_[tensor].fetch_add(bytes.size(), std::memory_order_relaxed);
  return written;
}

Status MkimWriter::Commit() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const uint64_t written = written_[i].load(std::memory_order_relaxed);
    if (written == layout_.blobs[i].size) continue;
    return Fail(ErrorCode::kInvalidArgument,
                "tensor '" + tensors_[i].name + "': " + std::to_string(written) + " of " +
                    std::to_string(layout_.blobs[i].size) + " bytes were written");
  }
  const auto reopened = MkimFile::Open(file_.temp_path(), options_.verify);
  if (!reopened) return Fail(reopened.error());
  return file_.Commit();
}

}  // namespace mk
