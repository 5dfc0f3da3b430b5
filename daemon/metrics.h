// Everything that the daemon measures, declared in one place: name, unit, meaning.
//
// One table feeds `mk status`, `mk top` and `mk metrics`. Add(), Observe() and CountRequest() may
// be called from any thread and cost a few relaxed atomic additions; nothing here allocates or
// locks. What is merely looked up when somebody asks (a Gauge) is sampled by metrics_report.cc.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "daemon/histogram.h"
#include "protocol/messages.h"

namespace mk::daemon {

struct MetricInfo {
  std::string_view name;  // lower_snake_case, ends with the unit if there is one
  std::string_view unit;  // "seconds", "bytes"; "": a number of what the name says
  std::string_view help;  // one line
  // Metrics of one name that differ in a label follow each other in their table.
  std::string_view label = {};
  std::string_view value = {};
};

// What only grows.
enum class Counter : size_t {
  kMessagesReceived,
  kMessagesRejected,
  kMessagesSent,
  kSendsDeferred,
  kAnswersDropped,
  kReceivedBytes,
  kSentBytes,
  kConnectionsAccepted,
  kConnectionsClosed,
  kClientsLost,
  kStoppedByClient,
  kStoppedClientLeft,
  kStoppedClientSilent,
  kStoppedDeadline,
  kStoppedShutdown,
  kOutboxPauses,
  kPromptTokens,
  kPrefillTokens,
  kCachedTokens,
  kGeneratedTokens,
  kDraftPasses,
  kDraftedTokens,
  kAcceptedTokens,
  kForwards,
  kExpertPicks,
  kExpertReads,
  kExpertReadsSaved,
  kModelsLoaded,
  kModelsUnloaded,
  kPrecisionsPrepared,
  kLoadsFailed,
  kJobsStarted,
  kJobsDone,
  kSocketRecreated,
  kPrefixWaits,
  kCount,
};

// What has a size each time it happens.
enum class Distribution : size_t {
  kQueueWait,
  kFirstToken,
  kTokenTime,
  kDecodeStep,
  kPrefillStep,
  kMixedStep,
  kDecodeBatch,
  kPrefillBatch,
  kLoadTime,
  kCount,
};

struct DistributionInfo : MetricInfo {
  double ticks_per_unit = 1;  // values are observed in ticks
  HistogramRange range;
};

// What is looked up when somebody asks.
enum class Gauge : size_t {
  kBuild,
  kWorkers,
  kMaxBatch,
  kConnections,
  kConnectionsRefused,
  kOpenRequests,
  kJobs,
  kJobsUnsaved,
  kEventsWaiting,
  kModels,
  kModelMemory,
  kModelUsers,
  kMemoryBudget,
  kMemoryUsed,
  kProcessorTime,
  kResidentMemory,
  kOpenFiles,
  kMaxFiles,
  kProcessThreads,
  kStartTime,
  kPrefixStates,
  kPrefixBytes,
  kPrefixLimit,
  kPrefixEvictions,
  kPrefixLookups,
  kPrefixHits,
  kPrefixDiskReads,
  kPrefixDiskWrites,
  kPrefixDiskUnwritten,
  kPrefixDiskRefused,
  kCount,
};

struct GaugeInfo : MetricInfo {
  bool grows = false;  // it only grows: a counter that somebody else keeps
};

// How a request ended: 0 is `done`, then every error code in its order.
using Outcome = size_t;
inline constexpr Outcome kOutcomeDone = 0;
inline constexpr size_t kOutcomes = static_cast<size_t>(protocol::ErrorCode::kInternal) + 2;
// `done` bodies that say that the request was cut short count as cancelled.
Outcome OutcomeOf(const protocol::Body& last);
std::string_view OutcomeName(Outcome outcome);

const MetricInfo& Describe(Counter counter);
const DistributionInfo& Describe(Distribution distribution);
const GaugeInfo& Describe(Gauge gauge);
const MetricInfo& DescribeRequests();  // labels: op, outcome

class Metrics {
 public:
  Metrics();

  void Add(Counter counter, uint64_t amount = 1) {
    counters_[static_cast<size_t>(counter)].fetch_add(amount, std::memory_order_relaxed);
  }
  uint64_t Get(Counter counter) const {
    return counters_[static_cast<size_t>(counter)].load(std::memory_order_relaxed);
  }

  // In the distribution's ticks.
  void Observe(Distribution distribution, uint64_t ticks) {
    distributions_[static_cast<size_t>(distribution)].Observe(ticks);
  }
  // For distributions of seconds. A negative time counts as none.
  template <typename Rep, typename Period>
  void Observe(Distribution distribution, std::chrono::duration<Rep, Period> time) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
    Observe(distribution, us > 0 ? static_cast<uint64_t>(us) : 0);
  }
  HistogramSnapshot Get(Distribution distribution) const {
    return distributions_[static_cast<size_t>(distribution)].Snapshot();
  }

  void CountRequest(protocol::Op op, Outcome outcome) {
    requests_[static_cast<size_t>(op)][outcome].fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t Requests(protocol::Op op, Outcome outcome) const {
    return requests_[static_cast<size_t>(op)][outcome].load(std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kDistributions = static_cast<size_t>(Distribution::kCount);
  static constexpr size_t kOps = std::variant_size_v<protocol::Args>;
  using Value = std::atomic<uint64_t>;
  static_assert(Value::is_always_lock_free);

  template <size_t... kIndex>
  explicit Metrics(std::index_sequence<kIndex...>)
      : distributions_{Histogram(Describe(static_cast<Distribution>(kIndex)).range)...} {}

  std::array<Value, static_cast<size_t>(Counter::kCount)> counters_{};
  std::array<Histogram, kDistributions> distributions_;
  std::array<std::array<Value, kOutcomes>, kOps> requests_{};
};

}  // namespace mk::daemon
