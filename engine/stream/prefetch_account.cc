#include "engine/stream/prefetch_account.h"

#include <algorithm>

namespace mk {
namespace {

constexpr uint32_t kWindow = 256;    // predictions that are judged together
constexpr uint64_t kFirstRest = 16;  // passes
constexpr uint64_t kLongestRest = 1024;

}  // namespace

void PrefetchAccount::StartPass(uint64_t pass) {
  if (!resting_ || pass < resume_at_) return;
  resting_ = false;
  stats_.active = true;
}

void PrefetchAccount::Settle(bool good, uint64_t pass) {
  ++settled_;
  if (good) ++good_;
  if (settled_ < kWindow) return;
  const bool pays = 4 * good_ >= settled_;
  settled_ = 0;
  good_ = 0;
  if (pays) {
    rest_ = 0;
  } else if (!resting_) {
    rest_ = std::clamp(2 * rest_, kFirstRest, kLongestRest);
    resume_at_ = pass + rest_;
    resting_ = true;
    stats_.active = false;
  }
}

}  // namespace mk
