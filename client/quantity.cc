#include "client/quantity.h"

#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "client/report.h"

namespace mk::client {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

constexpr double kKibi = 1024;
constexpr std::array kByteUnits = {
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"K", kKibi},
    Unit{"KiB", kKibi},
    Unit{"kB", 1e3},
    Unit{"KB", 1e3},
    Unit{"M", kKibi* kKibi},
    Unit{"MiB", kKibi* kKibi},
    Unit{"MB", 1e6},
    Unit{"G", kKibi* kKibi* kKibi},
    Unit{"GiB", kKibi* kKibi* kKibi},
    Unit{"GB", 1e9},
    Unit{"T", kKibi* kKibi* kKibi* kKibi},
    Unit{"TiB", kKibi* kKibi* kKibi* kKibi},
    Unit{"TB", 1e12},
};
constexpr std::array kTimeUnits = {Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1}};
constexpr double kMostBytes = 1e18;
constexpr double kMostSeconds = 86400;

// A decimal number and one of the units behind it.
std::optional<double> ParseWithUnit(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) return std::nullopt;
  const std::string_view name(rest, static_cast<size_t>(end - rest));
  for (const Unit& unit : units) {
    if (unit.name == name) return value * unit.scale;
  }
  return std::nullopt;
}

}  // namespace

protocol::Result<uint64_t> ParseBytes(const std::string& option, const std::string& text) {
  const auto bytes = ParseWithUnit(text, kByteUnits);
  if (bytes && *bytes >= 1 && *bytes <= kMostBytes) return static_cast<uint64_t>(*bytes);
  return protocol::Fail(
      UsageError(option + ": \"" + text + "\" is no size", "for example 512MiB, 8GiB or 1.5TB"));
}

protocol::Result<uint64_t> ParseRate(const std::string& option, const std::string& text) {
  std::string_view rate = text;
  if (rate.size() > 2 && rate.substr(rate.size() - 2) == "/s") rate.remove_suffix(2);
  const auto bytes = ParseWithUnit(rate, kByteUnits);
  if (bytes && *bytes >= 1 && *bytes <= kMostBytes) return static_cast<uint64_t>(*bytes);
  return protocol::Fail(UsageError(option + ": \"" + text + "\" is no rate",
                                   "bytes per second, for example 500MB/s or 2GB/s"));
}

protocol::Result<double> ParseSeconds(const std::string& option, const std::string& text) {
  const auto seconds = ParseWithUnit(text, kTimeUnits);
  if (seconds && *seconds <= kMostSeconds) return *seconds;
  return protocol::Fail(UsageError(option + ": \"" + text + "\" is no time",
                                   "a number and its unit, for example 100us, 2ms or 0.5s"));
}

}  // namespace mk::client
