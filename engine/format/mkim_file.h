// MkimFile: a model container, opened and checked.
//
// Layout: 8 bytes "MKIM0001" or "MKIM0002"; (0002) u32 length and a JSON config; u32 count; a
// directory of {u16 name length, name, u8 dtype, u8 rank, u32 dims[rank], u64 offset, u64 size};
// blobs. Integers little-endian, offsets absolute.
//
// Open() trusts nothing: when it succeeds every entry lies inside the file, overlaps no other, has
// the size that its type and dims imply, and every tensor that the config calls for is there with
// its shape. Blobs are read with pread, never mapped, so a file that is truncated later gives
// an error and no signal.
//
// Thread safety: immutable after Open; all methods may be called from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/format/config.h"
#include "engine/format/dtype.h"
#include "engine/format/resource_plan.h"
#include "engine/format/tensor_entry.h"

namespace mk {

struct OpenOptions {
  enum class Checks {
    kContainer,  // header, directory, config; any set of tensors
    kModel,      // and the tensors of the architecture, values of its vectors finite
  };
  Checks checks = Checks::kModel;
  ConfigOptions config;
  // Refuse (kOutOfMemory) a model whose resident bytes exceed this; 0 = no limit.
  uint64_t memory_limit = 0;
};

class MkimFile {
 public:
  // Errors: kNotFound, kPermissionDenied, kInvalidArgument (not a regular file), kCorrupt,
  // kUnsupported, kOutOfMemory, kIo. Messages name the file, the tensor or key, and what to do.
  static Result<std::shared_ptr<const MkimFile>> Open(const std::string& path,
                                                      const OpenOptions& options = {});
  // A file that is not there, by its header (magic, config, directory) and the size that it would
  // have: tells what a model needs without its weights. Checks as kContainer; every read of it
  // fails with kIo. `name` stands for the path.
  static Result<std::shared_ptr<const MkimFile>> FromHeader(std::string header, uint64_t file_bytes,
                                                            const std::string& name);
  MkimFile(const MkimFile&) = delete;
  MkimFile& operator=(const MkimFile&) = delete;

  const std::string& path() const { return path_; }  // canonical
  int version() const { return version_; }           // 1 or 2
  const MkimConfig& config() const { return config_; }
  std::string_view config_json() const { return config_json_; }  // raw text, "" in version 1
  const std::vector<std::string>& warnings() const { return warnings_; }
  const FileIdentity& identity() const { return identity_; }
  uint64_t data_start() const { return header_.size(); }  // first byte after the directory
  const ResourcePlan& resources() const { return resources_; }

  // All entries in directory order.
  std::span<const TensorEntry> tensors() const { return entries_; }
  // nullptr when there is no such tensor.
  const TensorEntry* FindTensor(std::string_view name) const;
  // nullptr when the layer is dense, an index is out of range or the tensor is missing. Constant
  // time.
  const TensorEntry* Expert(uint32_t layer, uint32_t expert, ExpertPart part) const;

  // Reads a whole blob; `out` must have entry.size bytes.
  Status ReadBlob(const TensorEntry& entry, std::span<std::byte> out) const;
  // Reads out.size() bytes from byte `first` of the blob on.
  Status ReadBlobRange(const TensorEntry& entry, uint64_t first, std::span<std::byte> out) const;
  // Reads out.size() elements from element `first` on, of an F32 or BF16 tensor. Errors:
  // kInvalidArgument for another type or a range outside the tensor.
  Status ReadF32Range(const TensorEntry& entry, uint64_t first, std::span<float> out) const;
  // Reads the whole tensor; `out` must have entry.elements() values.
  Status ReadF32(const TensorEntry& entry, std::span<float> out) const;
  // As ReadF32, for an I32 tensor.
  Status ReadI32(const TensorEntry& entry, std::span<int32_t> out) const;

  // For readers of their own (io_uring, read-ahead). Stays open as long as this object.
  int fd() const { return fd_.get(); }

  // kCorrupt when the file was written to or cut since it was opened. A file that was replaced by
  // rename does not count: our descriptor still reads the old one.
  Status Unchanged() const;

  // 32 hex digits: digest of the size, the whole header and 64 blocks of 4 KiB spread over the
  // blobs. Equal files have equal fingerprints; files that differ in config, names, shapes or
  // layout practically never do.
  Result<std::string> Fingerprint() const;

  // Decoded weights in the file: the sum of elements() over floating point tensors.
  uint64_t CountParameters() const;

 private:
  friend class MkimOpener;
  MkimFile() = default;

  std::string path_;
  UniqueFd fd_;
  FileIdentity identity_;
  int version_ = 2;
  std::string header_;  // all bytes before the blobs; names and config point into it
  std::string_view config_json_;
  MkimConfig config_;
  ResourcePlan resources_;
  std::vector<std::string> warnings_;
  std::vector<TensorEntry> entries_;
  struct NameSlot {
    uint64_t hash = 0;
    uint32_t index = 0;
  };
  uint64_t hash_seed_ = 0;             // random, so that nobody can prepare collisions
  std::vector<NameSlot> by_hash_;      // sorted by hash
  std::vector<uint32_t> expert_rows_;  // [layer] -> row of experts_, kNoEntry for a dense layer
  std::vector<uint32_t> experts_;      // [row][expert][3] -> entry index, kNoEntry when missing
  static constexpr uint32_t kNoEntry = 0xffffffffu;
};

}  // namespace mk
