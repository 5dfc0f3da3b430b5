// The folder of spine files: which of them serves a load, and what is kept.
//
// Nothing depends on it. A file that is missing, damaged, of something else or open to others is
// not used; a folder that cannot be written, or a full disk, means that nothing is kept. The folder
// holds at most a limit; files that were used least recently make room for new ones.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/format/spine_file.h"

namespace mk {

struct SpineCacheOptions {
  std::string directory;  // empty: no spine is read or kept
  // Bytes of all files together. 0: 20 GB or a tenth of the disk, whichever is less.
  uint64_t limit = 0;
  // Spines of fewer bytes are made anew by every load: it takes no longer than to read them.
  uint64_t smallest = uint64_t{64} << 20;
  // Told, in one line, that a file was not used or not kept, and why, or that one was written. May
  // be called from several threads, also after the load. May be empty.
  std::function<void(std::string_view)> log;

  bool Wants(uint64_t spine_bytes) const { return !directory.empty() && spine_bytes >= smallest; }
};

// The file that serves the key, marked as used now.
std::optional<SpineFile> FindSpine(const SpineCacheOptions& options, const SpineKey& key);

// Keeps a spine. `go_on` as in WriteSpineFile.
void KeepSpine(const SpineCacheOptions& options, const SpineKey& key,
               std::span<const std::byte> spine, const std::function<bool()>& go_on);

}  // namespace mk
