// The work of an evaluation: units that are run in rounds of many at once, beside other requests,
// and whose results are kept so that a later run of the job goes on behind them.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/jobs/engine_access.h"
#include "daemon/jobs/job_kind.h"
#include "eval/task.h"

namespace mk::daemon {

struct PairedText;

// A model that is measured.
struct EvalModel {
  ModelLease lease;
  Precision precision = Precision::kExact;
  const LoadedModel& loaded() const { return *lease.loaded(); }
  const Model& model() const { return *lease.loaded()->model; }
};

struct EvalUnit {
  enum class Kind {
    kScore,     // the likelihood of `item` by one model
    kGenerate,  // what one model says after `item.text`, judged by `probe`
    kPair,      // `item.ids` read by both models
  };
  Kind kind = Kind::kScore;
  size_t model = 0;  // of kScore and kGenerate
  protocol::ScoreItem item;
  const eval::Probe* probe = nullptr;  // of kGenerate; outlives the work
};

// What a unit gave: kScore and kPair as ScoreOf and PairOf read it, kGenerate as
// ScoreOf, one token for a right answer and none for a wrong one.
using UnitResult = std::vector<double>;

struct UnitScore {
  double nats = 0;
  uint64_t tokens = 0;
  uint64_t top1 = 0;
  uint64_t top5 = 0;
  uint64_t unk = 0;
  // Of Trust: of all units that ran in one with this one, told by one of them.
  uint64_t shadow_tokens = 0;
  uint64_t failed_experts = 0;
};
UnitScore ScoreOf(const UnitResult& result);

struct UnitPair {
  UnitScore sides[2];
  uint64_t same_top = 0;
  uint64_t shared_top = 0;
  std::span<const double> overlap;  // as PairedText; valid as long as the result
  std::span<const double> kl;
};
UnitPair PairOf(const UnitResult& result);

class EvalWork {
 public:
  // All outlive it. Two models for units that need both.
  EvalWork(EngineAccess& engine, JobContext& context, std::span<const EvalModel> models,
           const protocol::EvalItems& items)
      : engine_(engine),
        context_(context),
        models_(models),
        chunked_prefill_(items.chunked_prefill),
        fallback_(items.stream_fallback) {}

  std::vector<EvalUnit> units;

  // Runs all units, but for those that an earlier run of the job has done. Errors: those of scoring
  // and running, kCancelled.
  protocol::Status Run();
  const UnitResult& of(size_t unit) const { return results_[unit]; }
  // Its job was told to end.
  bool cancelled() const { return context_.cancelled(); }
  // Routers of both models can be compared.
  bool SameShape() const;

 private:
  using Lane = std::vector<size_t>;  // units that one task does, one after the other
  std::vector<Lane> NextRound() const;
  protocol::Status RunRound(const std::vector<Lane>& lanes);
  protocol::Result<PreparedRun> Prepare(const Lane& lane);
  protocol::Result<PreparedRun> PrepareScores(const Lane& lane);
  protocol::Result<PreparedRun> PrepareText(const EvalUnit& unit);
  protocol::Result<PreparedRun> PreparePairs(const Lane& lane);
  protocol::Status TakeResults(const std::vector<Lane>& lanes, std::vector<protocol::Body> bodies);
  void SaveProgress();
  uint64_t DigestOf() const;

  EngineAccess& engine_;
  JobContext& context_;
  const std::span<const EvalModel> models_;
  const bool chunked_prefill_;
  const bool fallback_;              // shadows in the place of experts that are not in memory
  std::vector<UnitResult> results_;  // of the first units, all that are done
  std::vector<std::shared_ptr<std::vector<PairedText>>> pairs_;  // of the round's lanes
  uint64_t digest_ = 0;
  std::chrono::steady_clock::time_point saved_;
  std::chrono::duration<double> saving_took_{0};
};

// The results of the first units as bytes for a checkpoint, and back. `digest`: of the work that
// they belong to. Nothing for bytes that are damaged or belong to other work.
std::string EncodeResults(uint64_t digest, std::span<const UnitResult> results);
std::vector<UnitResult> DecodeResults(uint64_t digest, size_t most, std::string_view bytes);

}  // namespace mk::daemon
