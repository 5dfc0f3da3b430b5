// Spine files: the dense weights of a model in the form that kernels read, as they lie in memory,
// so that the next load need not read and prepare the model's own.
//
// Layout, integers little-endian:
//
//   0     "MKSPINE\n"
//   8     u32 version of this format, u32 version of the layout of the weights
//   16    char[16] form, char[32] fingerprint of the model, char[32] digest of the layout
//   96    u64 size of the model file, i64 time of its last change (ns since 1970)
//   112   u64 bytes of the spine, u64 bytes of a block
//   128   u64 XXH3-64 of the table, u64 XXH3-64 of bytes 0 to 135
//   256   table: u64 XXH3-64 of every block of the spine (the last one may be shorter)
//   then, from a multiple of 4096 on, the spine
//
// A file is taken only if all of that is what the load expects, if it ends where it should, and if
// it is a regular file of this user that nobody else can read or write. Checksums guard against
// damage; against others the permissions do.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/base/unique_fd.h"

namespace mk {

// What a spine was made from and how. A file serves a load only if all of it is equal.
struct SpineKey {
  std::string fingerprint;   // of the model, 32 hex digits
  std::string form;          // of the weights: "bf16", "q8"; up to 15 characters
  uint32_t version = 0;      // of the layout of the weights
  std::string layout;        // digest of where every tensor lies, 32 hex digits
  uint64_t model_bytes = 0;  // of the model file
  int64_t model_mtime_ns = 0;
  uint64_t bytes = 0;  // of the spine

  std::string FileName() const;  // "<fingerprint>-<form>-<version>.spine"
};

inline constexpr size_t kSpineBlock = size_t{4} << 20;

// An open spine file with a sound header for the key that it was opened with. Reads are
// thread-safe.
class SpineFile {
 public:
  // kNotFound: there is none. Anything else: there is one, and the message tells why it cannot
  // serve.
  static Result<SpineFile> Open(const std::string& path, const SpineKey& key);

  const std::string& path() const { return path_; }
  size_t blocks() const { return digests_.size(); }
  // Reads block `index` to its place in `spine`, which has the key's number of bytes, and checks
  // it. Returns the bytes read. kCorrupt when they are not those that were written.
  Result<size_t> ReadBlock(size_t index, std::span<std::byte> spine) const;
  // Marks the file as used now: those used last are kept longest.
  void Touch() const;

 private:
  SpineFile() = default;

  std::string path_;
  UniqueFd fd_;
  uint64_t data_start_ = 0;
  std::vector<uint64_t> digests_;
};

// Writes a spine file that appears whole or not at all, readable by this user alone. The temporary
// file is locked (flock) as long as it is written. `go_on` is asked before every block; when it
// returns false the file is given up (kCancelled). Errors as AtomicFile.
Status WriteSpineFile(const std::string& path, const SpineKey& key,
                      std::span<const std::byte> spine, const std::function<bool()>& go_on);

}  // namespace mk
