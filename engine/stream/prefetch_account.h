// PrefetchAccount: what became of the predictions of one source, and whether to follow it.
//
// A source that wastes more than three of four reads is left alone for some passes over the layers,
// twice as long every time it fails again. One thread at a time.

#pragma once

#include <cstdint>

#include "engine/model/stream_options.h"

namespace mk {

class PrefetchAccount {
 public:
  explicit PrefetchAccount(bool allowed) { stats_.active = allowed; }

  // A pass over the layers begins: a pause may be over.
  void StartPass(uint64_t pass);
  void Issued() { ++stats_.issued; }
  void Skipped() { ++stats_.skipped; }
  void Useful(uint64_t pass) {
    ++stats_.useful;
    Settle(true, pass);
  }
  void Late(uint64_t pass) {
    ++stats_.late;
    Settle(true, pass);
  }
  void Wasted(uint64_t pass) {
    ++stats_.wasted;
    Settle(false, pass);
  }
  const PrefetchStats& stats() const { return stats_; }

 private:
  void Settle(bool good, uint64_t pass);

  PrefetchStats stats_;
  uint32_t settled_ = 0;  // of the current window
  uint32_t good_ = 0;
  uint64_t rest_ = 0;       // passes of the last pause
  uint64_t resume_at_ = 0;  // pass
  bool resting_ = false;
};

}  // namespace mk
