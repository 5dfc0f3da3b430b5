#include "engine/replay/disk_model.h"

#include <algorithm>

namespace mk {

double DiskModel::Begin(double now) const {
  return ends_.size() < timing_.depth ? now : std::max(now, ends_.top());
}

double DiskModel::Read(double now, uint64_t bytes) {
  const double begin = Begin(now);
  if (ends_.size() == timing_.depth) ends_.pop();
  const double ready = std::max(begin + timing_.latency_s, pipe_free_);
  pipe_free_ = ready + static_cast<double>(bytes) / timing_.bytes_per_s;
  ends_.push(pipe_free_);
  return pipe_free_;
}

}  // namespace mk
