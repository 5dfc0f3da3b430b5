// Sizes, rates and times as people type them.

#pragma once

#include <cstdint>
#include <string>

#include "protocol/error.h"

namespace mk::client {

// "4096", "512MiB", "8G", "1.5TB" as bytes, at least 1: K, M, G, T and KiB, MiB, GiB, TiB are
// powers of 1024, kB, MB, GB, TB powers of 1000. `option` is named in the usage error.
protocol::Result<uint64_t> ParseBytes(const std::string& option, const std::string& text);

// The same per second: "500MB/s", "2G". More than 0.
protocol::Result<uint64_t> ParseRate(const std::string& option, const std::string& text);

// "2ms", "100us", "0.5s" as seconds, at most a day.
protocol::Result<double> ParseSeconds(const std::string& option, const std::string& text);

}  // namespace mk::client
