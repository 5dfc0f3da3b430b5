// MkimWriter: writes a model container whose tensors are declared first and filled in any order.
//
// The file appears at its path complete, synced and checked by MkimFile::Open, or not at all.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/atomic_file.h"
#include "engine/base/result.h"
#include "engine/format/dtype.h"
#include "engine/format/mkim_file.h"

namespace mk {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint32_t> dims;  // outermost first, 1..4 of them
};

// Where the w1,w2,w3 record of a routed expert starts. Inside a record, and for all other blobs,
// the alignment is 64.
enum class ExpertAlign : uint32_t {
  kAuto = 0,  // 4096 when the record has at least 64 KiB, else 64
  k64 = 64,
  k4096 = 4096,
};

struct MkimLayout {
  std::string header;  // magic, config, count, directory
  struct Blob {
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  std::vector<Blob> blobs;  // in the order of the specs
  uint64_t file_bytes = 0;
  uint64_t expert_bytes = 0;  // blobs of routed experts, without padding
  uint64_t spine_bytes = 0;   // all other blobs, without padding
};

// Offsets of all blobs. An empty config makes an MKIM0001 file. Errors: kInvalidArgument (a name
// that is empty, too long, not printable ASCII or used twice; dims that the type does not allow).
Result<MkimLayout> PlanLayout(std::string_view config_json, std::span<const TensorSpec> tensors,
                              ExpertAlign align);

class MkimWriter {
 public:
  struct Options {
    ExpertAlign align = ExpertAlign::kAuto;
    // What the finished file must pass before it gets its name.
    OpenOptions verify;
    // Replace a file that is already there; otherwise Create fails (kInvalidArgument).
    bool replace = true;
  };

  // Lays out the file, checks that the disk has room, reserves it and writes the header.
  static Result<std::unique_ptr<MkimWriter>> Create(const std::string& path,
                                                    std::string_view config_json,
                                                    std::span<const TensorSpec> tensors,
                                                    const Options& options);
  // As above with default options.
  static Result<std::unique_ptr<MkimWriter>> Create(const std::string& path,
                                                    std::string_view config_json,
                                                    std::span<const TensorSpec> tensors);

  const MkimLayout& layout() const { return layout_; }

  // Writes a whole blob. Thread-safe for different tensors.
  Status WriteBlob(size_t tensor, std::span<const std::byte> blob);
  // Writes bytes of a blob from byte `first` on. Thread-safe; every byte must be written once.
  Status WriteBlobRange(size_t tensor, uint64_t first, std::span<const std::byte> bytes);

  // Fails with kInvalidArgument when bytes of a blob are missing (the tensor is named); syncs,
  // opens the file with the reader, renames it.
  Status Commit();

 private:
  MkimWriter(MkimLayout layout, std::vector<TensorSpec> tensors, AtomicFile file, Options options);

  MkimLayout layout_;
  std::vector<TensorSpec> tensors_;
  AtomicFile file_;
  Options options_;
  std::vector<std::atomic<uint64_t>> written_;  // bytes per tensor
};

}  // namespace mk
