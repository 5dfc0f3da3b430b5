// Everything that the daemon counts, in one place: name, help text, value.
//
// One table feeds `mk status` and every other view of the numbers. Add() may be called from any
// thread and costs one relaxed atomic addition.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mk::daemon {

enum class Counter : size_t {
  kMessagesReceived,
  kMessagesRejected,
  kMessagesSent,
  kSendsDeferred,
  kConnectionsAccepted,
  kConnectionsClosed,
  kRequestsAccepted,
  kRequestsDone,
  kRequestsFailed,
  kRequestsCancelled,
  kRequestsBusy,
  kClientsLost,
  kPromptTokens,
  kGeneratedTokens,
  kSteps,
  kForwards,
  kStepMicroseconds,
  kModelsLoaded,
  kModelsUnloaded,
  kPrecisionsPrepared,
  kJobsStarted,
  kJobsDone,
  kSocketRecreated,
  kCount,
};

struct CounterInfo {
  std::string_view name;  // lower_snake_case, the unit last
  std::string_view help;
};

const CounterInfo& Describe(Counter counter);

class Counters {
 public:
  void Add(Counter counter, uint64_t amount = 1) {
    values_[static_cast<size_t>(counter)].fetch_add(amount, std::memory_order_relaxed);
  }
  uint64_t Get(Counter counter) const {
    return values_[static_cast<size_t>(counter)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Counter::kCount)> values_{};
};

}  // namespace mk::daemon
