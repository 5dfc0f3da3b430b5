// DemandPredictor: guesses which experts will be asked for next from those that were asked for.
//
// It is shown every demand and says what to fetch ahead. The same classes serve a store that runs
// and the replay of a recorded trace; they are deterministic. One thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/expert_cache/key_list.h"

namespace mk {

class DemandPredictor {
 public:
  virtual ~DemandPredictor() = default;
  DemandPredictor(const DemandPredictor&) = delete;
  DemandPredictor& operator=(const DemandPredictor&) = delete;

  // A demand. Appends what it makes expect of a layer to come, best first, to `predicted`: layer *
  // experts + expert. Whether that is in memory already is for the caller to see.
  virtual void Observe(size_t layer, size_t expert, std::vector<ExpertKey>& predicted) = 0;

  // All demands of a layer, in order.
  void ObserveLayer(size_t layer, std::span<const uint32_t> experts,
                    std::vector<ExpertKey>& predicted) {
    for (const uint32_t expert : experts) Observe(layer, expert, predicted);
  }

 protected:
  DemandPredictor() = default;
};

}  // namespace mk
