#include "client/map_progress.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace mk::client {
namespace {

constexpr milliseconds kRedraw{200};

std::string Format(const char* format, double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

std::string Unhappy(const MapCounts& counts) {
  std::string text;
  if (counts.failed > 0) text += ", " + std::to_string(counts.failed) + " failed";
  if (counts.cancelled > 0) text += ", " + std::to_string(counts.cancelled) + " cancelled";
  if (counts.degraded > 0) text += ", " + std::to_string(counts.degraded) + " degraded";
  return text;
}

std::string Rate(const MapCounts& counts, double seconds) {
  return Format("%.0f tok/s", static_cast<double>(counts.tokens) / std::max(seconds, 1e-3));
}

}  // namespace

std::string MapProgressText(const MapCounts& counts, double seconds) {
  std::string text = std::to_string(counts.ended());
  if (counts.all_read) text += " of " + std::to_string(counts.read);
  text += " items";
  if (!counts.all_read && counts.input_part >= 0) {
    text += Format(", %.0f %% of the input", 100 * std::min(counts.input_part, 1.0));
  }
  return text + Unhappy(counts) + ", " + Rate(counts, seconds);
}

std::string MapSummaryText(const MapCounts& counts, double seconds) {
  std::string text = "[";
  text += std::to_string(counts.read) + " items" + Unhappy(counts) + "; ";
  text += std::to_string(counts.tokens) + " tokens, " + Rate(counts, seconds);
  return text + Format(", %.1f s]\n", seconds);
}

double MapProgress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void MapProgress::Show(const MapCounts& counts) {
  const Deadline now = Clock::now();
  if (!enabled_ || (shown_ && now - drawn_ < kRedraw)) return;
  drawn_ = now;
  shown_ = true;
  std::fputs(("\r\x1b[K" + MapProgressText(counts, seconds())).c_str(), stderr);
}

void MapProgress::Clear() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
}

}  // namespace mk::client
