// ExpertTable: where every routed expert lies in the file and what it takes in memory, resolved
// once, so that no name is looked up while a model runs.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/expert_cache/key_list.h"
#include "engine/experts/expert_arena.h"
#include "engine/experts/expert_store.h"
#include "engine/format/mkim_file.h"

namespace mk {

inline constexpr size_t kExpertParts = 3;  // w1, w2, w3

// A routed expert. Parts in the order of ExpertPart.
struct ExpertRecord {
  std::array<const TensorEntry*, kExpertParts> parts{};  // null in a layer without experts
  std::array<uint32_t, kExpertParts> value_offset{};     // of a prepared part in the value
  uint32_t value_bytes = 0;                              // all prepared parts, in multiples of 64
};

class ExpertTable {
 public:
  // Errors as PlanExpertArena; kUnsupported for experts of 4 GiB and more. The file outlives the
  // table.
  static Result<ExpertTable> Create(const MkimFile& file, const ExpertShape& shape);

  size_t layers() const { return in_layer_.size(); }
  size_t experts() const { return experts_; }  // E, of a layer
  size_t keys() const { return records_.size(); }
  bool has_experts(size_t layer) const { return in_layer_[layer]; }
  ExpertKey KeyOf(size_t layer, size_t expert) const {
    return static_cast<ExpertKey>(layer * experts_ + expert);
  }
  size_t LayerOf(ExpertKey key) const { return key / experts_; }
  const ExpertRecord& operator[](ExpertKey key) const { return records_[key]; }

  size_t largest_value() const { return largest_value_; }  // bytes of the largest prepared expert
  uint64_t all_values() const { return all_values_; }      // bytes of all prepared experts
  uint64_t largest_record() const { return largest_record_; }  // bytes of an expert in the file

 private:
  size_t experts_ = 0;
  std::vector<bool> in_layer_;
  std::vector<ExpertRecord> records_;  // [layers][E]
  size_t largest_value_ = 0;
  uint64_t all_values_ = 0;
  uint64_t largest_record_ = 0;
};

// Prepares a part of an expert from its blob; see PrepareExpert. `value`: the memory of the expert.
Status PreparePart(const MkimFile& file, const ExpertRecord& record, size_t part,
                   const std::byte* blob, std::byte* value, const float* codebook,
                   ExpertWeights& weights);

}  // namespace mk
