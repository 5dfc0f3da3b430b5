// PackReader: an open pack of either format.
//
// Believes nothing: lengths are held against the file before memory follows from them, and the
// bytes of a section against its checksum before anybody sees them.

#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/pack/pack_format.h"

namespace mk {

class PackReader {
 public:
  // Reads header and table. Errors: those of OpenForReading, and of DecodePackHeader.
  static Result<PackReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const PackInfo& info() const { return info_; }
  // Fills `out`, section.bytes of them. kCorrupt when they are not those that were written.
  Status Read(const PackSection& section, std::span<std::byte> out) const;
  // The same into memory of its own. Errors as Read, kOutOfMemory.
  Result<std::vector<std::byte>> Read(const PackSection& section) const;
  // A section of numbers: of floats, or of u32.
  Result<std::vector<float>> ReadFloats(const PackSection& section) const;
  Result<std::vector<uint32_t>> ReadNumbers(const PackSection& section) const;
  // The JSON of the lineage section; empty when there is none.
  Result<std::string> ReadLineage() const;

 private:
  PackReader(std::string path, OpenedFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Status ReadTable(std::span<const std::byte> start);
  template <typename T>
  Result<std::vector<T>> ReadVector(const PackSection& section) const;

  std::string path_;
  OpenedFile file_;
  PackInfo info_;
};

}  // namespace mk
