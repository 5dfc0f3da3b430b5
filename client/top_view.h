// What `mk top` shows, worked out from one reading after the other: rates of the last moments,
// percentiles of the last minute.

#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "client/daemon_feed.h"
#include "client/json_format.h"
#include "client/metric_window.h"

namespace mk::client {

struct TopView {
  protocol::StatusDone status;
  // Of the last moments; none with one reading only.
  struct Rates {
    double generated_per_s = 0;  // tokens
    double prefill_per_s = 0;    // tokens
    double cpu_share = 0;        // 1: one processor
    // Of the expert reads that requests alone would have needed, those that sharing saved.
    double expert_reads_saved = 0;
  };
  std::optional<Rates> rates;
  // Tokens per second by request, in the order of status.requests: generated, or read while its
  // prompt is being read.
  std::vector<double> request_rates;
  // Seconds that the percentiles are of; 0: the daemon's whole life.
  double window_s = 0;
  LatencySummary step;   // seconds
  LatencySummary token;  // from one token of a stream to the next
  LatencySummary first_token;
  LatencySummary queue_wait;
};

class TopHistory {
 public:
  // The view after one more reading.
  TopView Take(DaemonPicture picture);

 private:
  // A request of a client keeps its number as long as it lives.
  using RequestId = std::pair<std::string, uint64_t>;
  struct Moment {
    Deadline taken;
    MetricReading reading;
    std::map<RequestId, uint64_t> tokens;  // read and generated
  };

  const Moment* Before(Deadline now, std::chrono::seconds time) const;
  void AddRates(const Moment& now, TopView& view) const;

  uint64_t pid_ = 0;
  std::deque<Moment> moments_;  // the latest last
};

// {"time", "status", "rates", "latency"}; each request of the status has its rate.
Json TopJson(const TopView& view, const std::string& time);

}  // namespace mk::client
