// ModelFootprint: what a model needs, told from its header alone: nothing of it is loaded.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/model/model.h"

namespace mk {

// All in bytes.
struct ModelFootprint {
  struct InPrecision {
    uint64_t spine_bytes = 0;  // dense weights in memory
    TokenWork work;            // of a token
  };

  ModelInfo info;            // path, fingerprint and parameters are those of the file
  uint64_t table_bytes = 0;  // the same in every precision: embeddings and the like
  // All routed experts in memory, in the form that kernels read.
  uint64_t expert_bytes = 0;
  std::array<InPrecision, kPrecisions> precisions;
  // What lies on disk: dense weights and tables, and routed experts.
  uint64_t spine_file_bytes = 0;
  uint64_t expert_file_bytes = 0;
  // Of every routed expert on disk, [layers * experts]; 0 where a layer has none.
  std::vector<uint64_t> expert_sizes;
  // What the disk reads for each of them: whole blocks, from its first part to its last where they
  // lie together.
  std::vector<uint64_t> expert_read_bytes;
  // Experts that are streamed: what is kept of each of them wherever it is, and the least budget.
  uint64_t stream_table_bytes = 0;
  uint64_t smallest_stream_budget = 0;
  // A sequence of so many tokens.
  size_t sequence_tokens = 0;
  uint64_t sequence_bytes = 0;
  // What a forward pass over kMaxForwardTokens holds beside that, about.
  uint64_t scratch_bytes = 0;
  // Of the routed experts that a token uses; part of TokenWork::multiply_adds.
  uint64_t expert_multiply_adds = 0;

  const InPrecision& In(Precision precision) const {
    return precisions[static_cast<size_t>(precision)];
  }
  size_t moe_layers() const;
};

// Of a model of any architecture, and of a sequence of so many tokens. The file may be one that is
// not there (MkimFile::FromHeader). Errors: kCorrupt, kUnsupported.
Result<ModelFootprint> MeasureModel(std::shared_ptr<const MkimFile> file, size_t sequence_tokens);

}  // namespace mk
