// ShadowFile: a sidecar of shadows, opened and checked.
//
// Nothing is trusted: lengths are checked before memory is asked for, and what says so itself is
// checked against its digests. Bytes are read, never mapped: a file that is cut later gives an
// error and no signal. Thread safety: immutable after Open.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/shadow/shadow_format.h"

namespace mk {

// Where the shadows of a model are unless something else is said.
std::string ShadowPathFor(const std::string& model_path);

class ShadowFile {
 public:
  // Errors: those of OpenForReading, kCorrupt, kUnsupported.
  static Result<ShadowFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const ShadowInfo& info() const { return head_.info; }
  std::span<const float> codebooks() const { return head_.codebooks; }  // [stages][256][16]

  // Reads the bytes of experts [first, first + count) of the layer at place `row` of info().layers;
  // `out` has count * expert_bytes() bytes. kCorrupt when they are not those of the digests.
  Status Read(size_t row, size_t first, size_t count, std::span<std::byte> out) const;

  // kIncompatible when the shadows are not those of the model.
  Status CheckModel(const MkimFile& model) const;

 private:
  ShadowFile(std::string path, UniqueFd fd, ShadowHead head)
      : path_(std::move(path)), fd_(std::move(fd)), head_(std::move(head)) {}

  std::string path_;
  UniqueFd fd_;
  ShadowHead head_;
};

}  // namespace mk
