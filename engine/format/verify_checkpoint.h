// VerifyCheckpoint: how far the scan of a file has come, at the border of two tensors, as text that
// another process can go on from.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/file.h"
#include "engine/format/verify.h"

namespace mk {

struct VerifyCheckpoint {
  // Of the file: a scan goes on only in the very file that it began in.
  FileIdentity identity;
  std::string fingerprint;
  bool scanned = false;  // the first pass, over the whole file, is done
  uint64_t next = 0;     // tensor that the pass goes on with, counted in the pass's order
  std::string digest;    // saved state of the pass's digest
  VerifyReport report;   // what was found so far

  std::string Encode() const;
  // Nothing for what no Encode() gave.
  static std::optional<VerifyCheckpoint> Decode(std::string_view text);
};

}  // namespace mk
