// How often routers picked experts: exact counts, [layer][expert].

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/model/model.h"
#include "protocol/messages.h"

namespace mk::daemon {

// One thread counts; any thread may read or reset meanwhile, and then sees a token of which some
// layers are counted and some are not yet.
class ExpertCounter {
 public:
  explicit ExpertCounter(const ModelInfo& info);

  void Add(size_t layer, std::span<const int32_t> experts);

  // What was counted; with `take` counting begins anew, and nothing is lost in between.
  protocol::ExpertTally Tally(bool take = false) const;

 private:
  const size_t layers_;
  const size_t experts_;
  const size_t top_k_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // [layer][expert]
};

// The same for one run. What a pass shows is counted when its positions are kept: those of drafts
// that were not accepted are dropped.
class RunExpertCounter : public ForwardObserver {
 public:
  // `all`: that of the daemon, which counts them as well; may be null.
  RunExpertCounter(const ModelInfo& info, std::shared_ptr<ExpertCounter> all)
      : counter_(info), all_(std::move(all)) {}

  void OnRouter(size_t item, size_t position, size_t layer, std::span<const int32_t> experts,
                std::span<const float> weights) override;
  // Before a pass.
  void Begin();
  // After it: positions before `end` stay.
  void Keep(size_t end);
  protocol::ExpertTally Tally() const { return counter_.Tally(); }

 private:
  struct Pick {
    size_t position = 0;
    size_t layer = 0;
    size_t first = 0;  // in experts_
    size_t count = 0;
  };

  ExpertCounter counter_;
  const std::shared_ptr<ExpertCounter> all_;
  std::vector<Pick> picks_;       // of the pass
  std::vector<int32_t> experts_;  // of the picks
};

}  // namespace mk::daemon
