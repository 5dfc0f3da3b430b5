// A file of tensor rows as they come from the daemon: raw little-endian f32, row after row.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/unique_fd.h"
#include "protocol/messages.h"

namespace mk::client {

// Written beside its place under another name and put there by Commit(), so that a file of the
// wanted name is always whole. A name that stands for a pipe or a device is written directly.
class DumpFile {
 public:
  DumpFile() = default;
  DumpFile(DumpFile&&) = default;
  DumpFile& operator=(DumpFile&&) = default;
  // Without Commit() what was written is removed.
  ~DumpFile();

  static protocol::Result<DumpFile> Create(const std::string& path);

  // Rows must come in order of their position, pieces in order of their offset. Errors: kIoError,
  // kInternal for pieces that do not fit together.
  protocol::Status Append(const protocol::TensorChunk& piece);
  protocol::Status Commit();

  const std::string& path() const { return path_; }
  uint64_t rows() const { return rows_; }
  uint64_t row_bytes() const { return row_bytes_; }

 private:
  std::string path_;
  std::string temporary_;  // empty: written directly
  UniqueFd fd_;
  uint64_t rows_ = 0;
  uint64_t row_bytes_ = 0;
  uint64_t offset_ = 0;  // in the row that is being written
  std::optional<uint64_t> last_position_;
};

}  // namespace mk::client
