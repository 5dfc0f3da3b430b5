#include "engine/replay/timed_replay.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

namespace mk {
namespace {

class Run {
 public:
  Run(const DemandTrace& trace, const TimedOptions& options)
      : trace_(trace),
        options_(options),
        cache_(CachePolicy::Create(options.policy, trace.keys(), options.budget)),
        disk_(options.disk),
        arrival_(trace.keys()),
        seen_(trace.keys()) {}

  TimedReplay Passes() {
    Preload();
    const std::vector<size_t> starts = trace_.PassStarts();
    for (size_t pass = 0; pass + 1 < starts.size(); ++pass) {
      counts_ = pass >= options_.warm_up;
      const double stall = Pass(starts[pass], starts[pass + 1]);
      if (counts_) done_.stalls_s.push_back(stall);
    }
    return std::move(done_);
  }

 private:
  // The most wanted come last, as what was used last.
  void Preload() {
    uint64_t bytes = 0;
    size_t count = 0;
    for (const ExpertKey key : options_.preload) {
      if (trace_.size_of(key) > options_.budget - bytes) break;
      bytes += trace_.size_of(key);
      ++count;
    }
    for (size_t i = count; i-- > 0;) {
      const ExpertKey key = options_.preload[i];
      cache_->Insert(key, trace_.size_of(key), FetchReason::kDemand, evicted_);
    }
    evicted_.clear();
  }

  // Returns what the pass waited.
  double Pass(size_t begin, size_t end) {
    std::vector<size_t> layers;  // where their demands begin
    for (size_t i = begin; i < end; ++i) {
      if (i == begin || LayerAt(i) != LayerAt(i - 1)) layers.push_back(i);
    }
    const auto visits = static_cast<double>(layers.size());
    overlap_ = options_.overlap_s / visits;
    const double rest = options_.compute_s / visits - overlap_;
    layers.push_back(end);
    double stall = 0;
    for (size_t l = 0; l + 1 < layers.size(); ++l) {
      stall += Layer(std::span(trace_.demands).subspan(layers[l], layers[l + 1] - layers[l]));
      Advance(now_ + rest);
      for (const ExpertKey key : asked_) cache_->Unpin(key);
    }
    return stall;
  }

  double Layer(std::span<const ExpertKey> demands) {
    queue_.clear();  // of this layer, and what was guessed for one that did not come
    predicted_.clear();
    asked_.clear();
    ++visit_;
    for (const ExpertKey key : demands) {
      if (options_.predictor != nullptr) {
        options_.predictor->Observe(trace_.layer_of(key), trace_.expert_of(key), predicted_);
      }
      if (std::exchange(seen_[key], visit_) != visit_) asked_.push_back(key);
    }
    // What is there must not go for what is not: it is looked at first.
    for (const ExpertKey key : asked_) {
      cache_->Pin(key);
      if (cache_->resident(key)) cache_->Use(key);
    }
    missing_.clear();
    double ready = now_;
    for (const ExpertKey key : asked_) ready = std::max(ready, Demand(key));
    std::sort(missing_.begin(), missing_.end());
    ready = std::max(ready, Fetch(missing_));
    for (const ExpertKey key : missing_) {
      cache_->Insert(key, trace_.size_of(key), FetchReason::kDemand, evicted_);
      evicted_.clear();
    }
    queue_.assign(predicted_.begin(), predicted_.end());
    const double busy = now_ + overlap_;
    Advance(std::max(ready, busy));
    return std::max(0.0, ready - busy);
  }

  // When the expert is there; one that nobody has asked the disk for goes to `missing_`.
  double Demand(ExpertKey key) {
    done_.demands += counts_ ? 1 : 0;
    if (!cache_->resident(key)) {
      missing_.push_back(key);
      return now_;
    }
    const bool there = arrival_[key] <= now_;
    done_.hits += counts_ && there ? 1 : 0;
    done_.joined += counts_ && !there ? 1 : 0;
    return there ? now_ : arrival_[key];
  }

  std::vector<ExpertRead> PlanReads(std::span<const ExpertKey> keys) const {
    if (options_.plan_reads) return options_.plan_reads(keys);
    std::vector<ExpertRead> reads;
    for (const ExpertKey key : keys) {
      reads.push_back({trace_.size_of(key), trace_.size_of(key), {key}});
    }
    return reads;
  }

  // Reads experts, given in ascending order; returns when the last one has come. As a store does
  // it: as many as the room for reads allows are planned together, and wait for that room.
  double Fetch(std::span<const ExpertKey> keys) {
    const uint64_t limit = options_.bytes_in_flight > 0 ? options_.bytes_in_flight : ~uint64_t{0};
    std::deque<std::pair<double, uint64_t>> under_way;  // end, bytes; ends ascend
    uint64_t active = 0;
    double at = now_;
    const auto wait_for_one = [&] {
      at = std::max(at, under_way.front().first);
      active -= under_way.front().second;
      under_way.pop_front();
    };
    for (const ExpertKey key : keys) arrival_[key] = 0;
    for (size_t next = 0; next < keys.size();) {
      while (active >= limit) wait_for_one();
      const size_t first = next;
      for (uint64_t room = limit - active; next < keys.size() && room > 0; ++next) {
        room -= std::min(room, trace_.size_of(keys[next]));
      }
      for (const ExpertRead& read : PlanReads(keys.subspan(first, next - first))) {
        while (active > 0 && active + read.bytes > limit) wait_for_one();
        const double end = disk_.Read(at, read.disk_bytes);
        under_way.emplace_back(end, read.bytes);
        active += read.bytes;
        done_.bytes += counts_ ? read.disk_bytes : 0;
        for (const ExpertKey key : read.keys) arrival_[key] = std::max(arrival_[key], end);
      }
    }
    return under_way.empty() ? now_ : under_way.back().first;
  }

  // Goes on to a later time; reads ahead what can begin until then.
  void Advance(double until) {
    while (!queue_.empty() && disk_.Begin(now_) < until) {
      const ExpertKey key = queue_.front();
      queue_.pop_front();
      if (cache_->resident(key)) continue;
      if (!cache_->Insert(key, trace_.size_of(key), FetchReason::kPrefetch, evicted_)) continue;
      Fetch({&key, 1});
      done_.prefetches += counts_ ? 1 : 0;
    }
    evicted_.clear();
    now_ = until;
  }

  size_t LayerAt(size_t i) const { return trace_.layer_of(trace_.demands[i]); }

  const DemandTrace& trace_;
  const TimedOptions& options_;
  std::unique_ptr<CachePolicy> cache_;
  DiskModel disk_;
  double now_ = 0;
  double overlap_ = 0;  // of a layer of the pass
  bool counts_ = true;
  std::vector<double> arrival_;  // [keys], of residents
  std::vector<uint64_t> seen_;   // [keys]: the visit of a layer that last asked for it
  uint64_t visit_ = 0;
  std::vector<ExpertKey> asked_;    // by the open layer, each once
  std::vector<ExpertKey> missing_;  // of these
  std::vector<ExpertKey> predicted_;
  std::deque<ExpertKey> queue_;  // to be read ahead
  std::vector<ExpertKey> evicted_;
  TimedReplay done_;
};

}  // namespace

double TimedReplay::MeanStall() const {
  if (stalls_s.empty()) return 0;
  return std::accumulate(stalls_s.begin(), stalls_s.end(), 0.0) /
         static_cast<double>(stalls_s.size());
}

double TimedReplay::StallQuantile(double share) const {
  if (stalls_s.empty()) return 0;
  std::vector<double> sorted = stalls_s;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

TimedReplay ReplayTimed(const DemandTrace& trace, const TimedOptions& options) {
  return Run(trace, options).Passes();
}

}  // namespace mk
