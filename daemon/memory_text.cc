#include "daemon/memory_text.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace mk::daemon {
namespace {

protocol::Detail DetailOf(uint64_t bytes) {
  return static_cast<int64_t>(std::min<uint64_t>(bytes, std::numeric_limits<int64_t>::max()));
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  constexpr double kUnit = 1024;
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / kUnit;
  const char* unit = "KiB";
  for (const char* next : {"MiB", "GiB", "TiB"}) {
    if (value < kUnit) break;
    value /= kUnit;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.1f %s" : "%.0f %s", value, unit);
  return text;
}

protocol::Error OutOfMemory(const std::string& what, uint64_t bytes, const Ledger& ledger,
                            const ModelRegistry& registry) {
  const uint64_t free = ledger.available();
  const uint64_t expendable = registry.Expendable();
  protocol::Error error;
  error.code = protocol::ErrorCode::kOutOfMemory;
  error.message = what + " needs " + BytesText(bytes) + " of memory; " + BytesText(free) +
                  " of the budget of " + BytesText(ledger.budget()) +
                  " are free, and unloading idle models would free " + BytesText(expendable);
  error.hint =
      "mk ps shows who holds memory; unload a model, or raise the budget (`mk config set memory`)";
  error.details = {{"needed", DetailOf(bytes)},
                   {"free", DetailOf(free)},
                   {"budget", DetailOf(ledger.budget())},
                   {"unloadable", DetailOf(expendable)}};
  return error;
}

}  // namespace mk::daemon
