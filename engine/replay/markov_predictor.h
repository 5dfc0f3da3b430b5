// MarkovPredictor: which experts the next layer will ask for, from what it asked for before when
// this layer asked for the same ones.
//
// Counters halve in 256 passes over the layers. For experts e of the next layer L', with the set C
// that layer L has asked for: score(e) = sum over p in C of trans[L', p][e] + marg[L'][e] / 4.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/replay/demand_predictor.h"

namespace mk {

class MarkovPredictor final : public DemandPredictor {
 public:
  // Predicts `predict` experts as soon as a layer has asked for `top_k` different ones.
  MarkovPredictor(size_t layers, size_t experts, size_t top_k, size_t predict);

  void Observe(size_t layer, size_t expert, std::vector<ExpertKey>& predicted) override;

  // Of predictions for layers that have been seen since: experts, and those of them asked for.
  uint64_t scored() const { return scored_; }
  uint64_t hits() const { return hits_; }

 private:
  // A count that fades.
  struct Faded {
    float value = 0.0f;
    uint64_t stamp = 0;
    float At(uint64_t epoch) const;
    void Bump(uint64_t epoch);
  };
  struct Follower {
    uint32_t expert = 0;
    Faded count;
  };
  using Row = std::vector<Follower>;

  size_t KeyOf(size_t layer, size_t expert) const { return layer * experts_ + expert; }
  void CloseLayer(size_t next_layer);
  void BumpFollower(Row& row, uint32_t expert) const;
  void ScorePrediction();
  void Predict(std::vector<ExpertKey>& predicted);

  const size_t experts_;
  const size_t top_k_;
  const size_t predict_;
  uint64_t epoch_ = 0;                           // passes over the layers
  std::vector<Faded> popular_;                   // [layers][experts]
  std::vector<Row> followers_;                   // [layers][experts of the layer before]
  std::vector<int64_t> next_layer_;              // [layers]; -1: not known
  std::optional<size_t> open_;                   // the layer that is asking
  std::vector<uint32_t> asked_;                  // by it, different ones
  std::vector<uint32_t> before_;                 // by the layer before it
  std::vector<std::vector<uint32_t>> expected_;  // [layers]
  std::vector<float> scores_;                    // [experts]
  std::vector<uint32_t> candidates_;
  uint64_t scored_ = 0;
  uint64_t hits_ = 0;
};

}  // namespace mk
