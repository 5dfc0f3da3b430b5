#include "engine/shadow/shadow_file.h"

#include <algorithm>
#include <utility>

#include "engine/format/digest.h"
#include "engine/shadow/expert_values.h"

namespace mk {
namespace {

Error InFile(const std::string& path, Error error) {
  error.message = path + ": " + error.message;
  return error;
}

Result<std::string> ReadHead(int fd, uint64_t file_bytes, const std::string& path) {
  std::string bytes(std::min<uint64_t>(16, file_bytes), '\0');
  if (Status read = ReadAt(fd, 0, std::as_writable_bytes(std::span(bytes)), path); !read) {
    return Fail(read.error());
  }
  const Result<size_t> length = ShadowHeadBytes(bytes, file_bytes);
  if (!length) return Fail(InFile(path, length.error()));
  bytes.resize(*length);
  if (Status read = ReadAt(fd, 0, std::as_writable_bytes(std::span(bytes)), path); !read) {
    return Fail(read.error());
  }
  return bytes;
}

}  // namespace

std::string ShadowPathFor(const std::string& model_path) {
  return model_path + ".shadows";
}

Result<ShadowFile> ShadowFile::Open(const std::string& path) {
  Result<OpenedFile> opened = OpenForReading(path);
  if (!opened) return Fail(opened.error());
  const uint64_t file_bytes = opened->identity.size;
  const Result<std::string> bytes = ReadHead(opened->fd.get(), file_bytes, path);
  if (!bytes) return Fail(bytes.error());
  Result<ShadowHead> head = DecodeShadowHead(*bytes, file_bytes);
  if (!head) return Fail(InFile(path, head.error()));
  return ShadowFile(path, std::move(opened->fd), std::move(*head));
}

Status ShadowFile::Read(size_t row, size_t first, size_t count, std::span<std::byte> out) const {
  const size_t bytes = info().expert_bytes();
  const uint64_t place = uint64_t{row} * info().experts + first;
  if (Status read = ReadAt(fd_.get(), info().data_offset() + place * bytes, out, path_); !read) {
    return read;
  }
  for (size_t i = 0; i < count && !head_.digests.empty(); ++i) {
    if (Xxh3Of(out.subspan(i * bytes, bytes)) == head_.digests[place + i]) continue;
    return Fail(ErrorCode::kCorrupt,
                path_ + ": the shadow of expert " + std::to_string(first + i) + " of layer " +
                    std::to_string(info().layers[row]) + " is damaged",
                "build the shadows again with `mk shadow`");
  }
  return {};
}

Status ShadowFile::CheckModel(const MkimFile& model) const {
  const ExpertShape shape = ExpertShapeOf(model);
  const bool fits = info().layers == ExpertLayers(shape) && info().experts == shape.experts &&
                    info().groups == shape.inner * shape.width / kVq1Group;
  std::string problem = fits ? "" : "layers, experts or sizes differ";
  if (fits && !info().fingerprint.empty()) {
    const Result<std::string> fingerprint = model.Fingerprint();
    if (!fingerprint) return Fail(fingerprint.error());
    if (*fingerprint != info().fingerprint) problem = "they were made of other weights";
  }
  if (problem.empty()) return {};
  return Fail(ErrorCode::kIncompatible,
              path_ + ": not the shadows of " + model.path() + ": " + problem,
              "make them with `mk shadow " + model.path() + " --out " + path_ + "`");
}

}  // namespace mk
