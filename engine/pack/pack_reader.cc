#include "engine/pack/pack_reader.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/format/digest.h"
#include "engine/pack/mkmem1.h"

namespace mk {

Result<PackReader> PackReader::Open(const std::string& path) {
  Result<OpenedFile> file = OpenForReading(path);
  if (!file) return Fail(file.error());
  PackReader reader(path, std::move(*file));
  std::array<std::byte, kPackHeaderBytes> header{};
  const uint64_t size = reader.file_.identity.size;
  const std::span<std::byte> start =
      std::span(header).first(static_cast<size_t>(std::min<uint64_t>(size, header.size())));
  if (Status read = ReadAt(reader.file_.fd.get(), 0, start, path); !read) {
    return Fail(read.error());
  }
  try {
    if (IsMkmem1(start)) {
      Result<PackInfo> info = IndexMkmem1(reader.file_, path);
      if (!info) return Fail(info.error());
      reader.info_ = std::move(*info);
    } else if (Status read = reader.ReadTable(start); !read) {
      return Fail(read.error());
    }
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the table of " + path);
  }
  return reader;
}

Status PackReader::ReadTable(std::span<const std::byte> start) {
  Result<PackTablePlace> place = DecodePackHeader(start, file_.identity.size, path_, info_);
  if (!place) return Fail(place.error());
  std::vector<std::byte> table(static_cast<size_t>(place->bytes));
  if (Status read = ReadAt(file_.fd.get(), place->offset, table, path_); !read) return read;
  if (Status good = DecodePackTable(table, *place, path_, info_); !good) return good;
  return {};
}

Status PackReader::Read(const PackSection& section, std::span<std::byte> out) const {
  if (out.empty()) return {};
  if (Status read = ReadAt(file_.fd.get(), section.offset, out, path_); !read) return read;
  if (info_.format == PackFormat::kMkmem1 || Xxh3Of(out) == section.digest) return {};
  return Fail(DamagedPack(
      path_,
      "is damaged in section " + SectionTypeName(section.type) +
          (section.layer == kGlobalLayer ? "" : " of layer " + std::to_string(section.layer))));
}

template <typename T>
Result<std::vector<T>> PackReader::ReadVector(const PackSection& section) const {
  try {
    std::vector<T> values(static_cast<size_t>(section.bytes / sizeof(T)));
    if (Status read = Read(section, std::as_writable_bytes(std::span(values))); !read) {
      return Fail(read.error());
    }
    return values;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a section of " + path_);
  }
}

Result<std::vector<std::byte>> PackReader::Read(const PackSection& section) const {
  return ReadVector<std::byte>(section);
}

Result<std::vector<float>> PackReader::ReadFloats(const PackSection& section) const {
  return ReadVector<float>(section);
}

Result<std::vector<uint32_t>> PackReader::ReadNumbers(const PackSection& section) const {
  return ReadVector<uint32_t>(section);
}

Result<std::string> PackReader::ReadLineage() const {
  const PackSection* section = info_.Find(PackSectionType::kLineage);
  if (section == nullptr) return std::string();
  Result<std::vector<char>> text = ReadVector<char>(*section);
  if (!text) return Fail(text.error());
  return std::string(text->begin(), text->end());
}

}  // namespace mk
