// PackWriter: a new MKMEM002 file that appears whole or not at all.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/base/atomic_file.h"
#include "engine/base/result.h"
#include "engine/pack/pack_format.h"

namespace mk {

class PackWriter {
 public:
  // `info` says all but places, digests, state id and size; they are filled in. The file is for
  // this user alone: it tells what was said. Errors as AtomicFile.
  static Result<PackWriter> Create(const std::string& path, PackInfo info);

  const PackInfo& info() const { return info_; }
  // Writes section `index`, all its bytes. Each is to be written once.
  Status Write(size_t index, std::span<const std::byte> bytes);
  // Makes the file appear. Returns what it holds.
  Result<PackInfo> Commit();

 private:
  PackWriter(AtomicFile file, PackInfo info) : file_(std::move(file)), info_(std::move(info)) {}

  AtomicFile file_;
  PackInfo info_;
};

// A section for a writer: of one dimension unless more are given.
PackSection NewSection(PackSectionType type, StateType element, size_t count);
PackSection NewSection(const StateSection& state);

// Refuses (kInvalidArgument) to replace a file that is no pack, and with `replace` off any file.
Status CheckPackTarget(const std::string& path, bool replace);

}  // namespace mk
