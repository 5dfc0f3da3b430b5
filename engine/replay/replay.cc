#include "engine/replay/replay.h"

#include <limits>
#include <queue>
#include <utility>

#include "engine/replay/markov_predictor.h"

namespace mk {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

// For every demand, the index of the next one of the same expert.
std::vector<size_t> NextUses(const DemandTrace& trace) {
  std::vector<size_t> next(trace.demands.size());
  std::vector<size_t> last(trace.keys(), kNever);
  for (size_t i = trace.demands.size(); i-- > 0;) {
    const ExpertKey key = trace.demands[i];
    next[i] = std::exchange(last[key], i);
  }
  return next;
}

// Sums of prefixes of an array that changes (Fenwick 1994).
class PrefixSums {
 public:
  explicit PrefixSums(size_t size) : sums_(size + 1) {}
  void Add(size_t index, int64_t value) {
    for (size_t i = index + 1; i < sums_.size(); i += i & (~i + 1)) sums_[i] += value;
  }
  // Of the elements below `end`.
  int64_t Below(size_t end) const {
    int64_t sum = 0;
    for (size_t i = end; i > 0; i -= i & (~i + 1)) sum += sums_[i];
    return sum;
  }

 private:
  std::vector<int64_t> sums_;
};

}  // namespace

uint64_t ReplayPolicy(const DemandTrace& trace, CachePolicyKind kind, uint64_t capacity) {
  const auto cache = CachePolicy::Create(kind, trace.keys(), capacity);
  std::vector<ExpertKey> evicted;
  uint64_t hits = 0;
  for (const ExpertKey key : trace.demands) {
    if (cache->resident(key)) {
      cache->Use(key);
      ++hits;
    } else {
      cache->Insert(key, trace.size_of(key), FetchReason::kDemand, evicted);
      evicted.clear();
    }
  }
  return hits;
}

uint64_t ReplayBelady(const DemandTrace& trace, uint64_t capacity) {
  const std::vector<size_t> next = NextUses(trace);
  // Latest next use first. An element is out of date when its expert has been used since.
  std::priority_queue<std::pair<size_t, ExpertKey>> by_next;
  std::vector<size_t> next_of(trace.keys());
  std::vector<bool> resident(trace.keys());
  uint64_t held = 0;
  uint64_t hits = 0;
  for (size_t i = 0; i < trace.demands.size(); ++i) {
    const ExpertKey key = trace.demands[i];
    const uint64_t size = trace.size_of(key);
    if (resident[key]) {
      ++hits;
    } else if (size <= capacity) {
      while (held > capacity - size) {
        const auto [use, victim] = by_next.top();
        by_next.pop();
        if (!resident[victim] || next_of[victim] != use) continue;
        resident[victim] = false;
        held -= trace.size_of(victim);
      }
      resident[key] = true;
      held += size;
    } else {
      continue;
    }
    next_of[key] = next[i];
    by_next.emplace(next[i], key);
  }
  return hits;
}

PrefetchReplay ReplayPredictor(const DemandTrace& trace, uint64_t capacity,
                               DemandPredictor& predictor) {
  const auto cache = CachePolicy::Create(CachePolicyKind::kLru, trace.keys(), capacity);
  std::vector<ExpertKey> predicted;
  std::vector<ExpertKey> evicted;
  PrefetchReplay replay;
  for (const ExpertKey key : trace.demands) {
    predicted.clear();
    predictor.Observe(trace.layer_of(key), trace.expert_of(key), predicted);
    for (const ExpertKey ahead : predicted) {
      if (cache->resident(ahead)) {
        cache->Use(ahead);
      } else if (cache->Insert(ahead, trace.size_of(ahead), FetchReason::kPrefetch, evicted)) {
        ++replay.prefetches;
      }
    }
    if (cache->resident(key)) {
      cache->Use(key);
      ++replay.hits;
    } else {
      cache->Insert(key, trace.size_of(key), FetchReason::kDemand, evicted);
    }
    evicted.clear();
  }
  return replay;
}

PrefetchReplay ReplayMarkov(const DemandTrace& trace, uint64_t capacity, size_t top_k,
                            size_t predict) {
  MarkovPredictor predictor(trace.layers, trace.experts, top_k, predict);
  return ReplayPredictor(trace, capacity, predictor);
}

std::vector<uint64_t> LruHitCurve(const DemandTrace& trace) {
  // 1 at the last use of every expert: those after the last use of one have been used since.
  PrefixSums last_uses(trace.demands.size());
  std::vector<size_t> last(trace.keys(), kNever);
  std::vector<uint64_t> hits(trace.DistinctKeys() + 1);
  for (size_t i = 0; i < trace.demands.size(); ++i) {
    const ExpertKey key = trace.demands[i];
    if (last[key] != kNever) {
      const int64_t since = last_uses.Below(i) - last_uses.Below(last[key] + 1);
      ++hits[static_cast<size_t>(since) + 1];
      last_uses.Add(last[key], -1);
    }
    last_uses.Add(i, 1);
    last[key] = i;
  }
  for (size_t c = 1; c < hits.size(); ++c) hits[c] += hits[c - 1];
  return hits;
}

}  // namespace mk
