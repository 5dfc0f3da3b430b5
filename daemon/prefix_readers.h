// Prompts that are being read: a run whose prompt begins like one of them waits for the state that
// will be stored where they part, instead of reading the same tokens once more.
//
// Belongs to the scheduler's thread, on which all runs of a model take their steps.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/prefix_kind.h"
#include "daemon/step_task.h"

namespace mk::daemon {

// One run that reads. What it points to is the run's.
struct PrefixReading {
  const StepTask* task = nullptr;  // null: it has read its prompt, or will not
  PrefixKind kind;
  std::span<const int32_t> prompt;
  size_t position = 0;                   // tokens that it has read
  std::vector<size_t>* marks = nullptr;  // where its state will be stored, descending
};

// The state after `until` tokens is waited for; no reading: nothing is.
struct PrefixWait {
  std::shared_ptr<PrefixReading> reading;
  size_t until = 0;

  bool done() const { return reading && reading->position >= until; }
  bool given_up() const { return reading && reading->task == nullptr && !done(); }
};

class PrefixReaders {
 public:
  void Add(std::shared_ptr<PrefixReading> reading) {
    std::erase_if(readings_, [](const auto& one) { return one->task == nullptr; });
    readings_.push_back(std::move(reading));
  }

  // The reading that will spare a run the most tokens, if they are worth a wait: it will store its
  // state where the prompts part. `known`: tokens that the run need not read anyway.
  PrefixWait FindWorthWaiting(const PrefixKind& kind, std::span<const int32_t> prompt,
                              size_t known) const;

 private:
  std::vector<std::shared_ptr<PrefixReading>> readings_;
};

}  // namespace mk::daemon
