// What `mk bench` found, in one precision and in all, and how it is shown.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "client/json_format.h"
#include "protocol/messages.h"

namespace mk::client {

// Seen from the client, over the connection that it has; medians.
struct BenchSeen {
  double load_ms = 0;  // from nothing in memory to ready, the file in the page cache
  double ping_ms = 0;
  double ttft_ms = 0;  // from sending a warm run to its first token
  size_t prompt_tokens = 0;
};

struct BenchResult {
  protocol::BenchDone done;
  std::optional<BenchSeen> seen;  // of a job, nothing was
};

// All results are of one model.
std::string BenchText(const std::vector<BenchResult>& results);
std::string BenchMarkdown(const std::vector<BenchResult>& results);
Json BenchJson(const std::vector<BenchResult>& results);

}  // namespace mk::client
