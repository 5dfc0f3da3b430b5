#include "client/progress.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace mk::client {
namespace {

constexpr milliseconds kRedraw{100};
constexpr size_t kBarWidth = 24;

std::string Format(const char* format, double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

std::string AmountText(uint64_t amount, const std::string& unit) {
  if (unit == "bytes") return BytesText(amount);
  return std::to_string(amount) + " " + unit;
}

std::string StageText(const std::string& stage) {
  if (stage == "load") return "loading the model";
  if (stage == "prepare") return "preparing the precision";
  if (stage == "prefill") return "reading the prompt";
  if (stage == "verify") return "verifying";
  if (stage == "build") return "building";
  if (stage == "bench") return "measuring";
  if (stage == "encode") return "splitting into tokens";
  if (stage == "absorb") return "reading the text";
  if (stage == "eval") return "measuring";
  if (stage == "save") return "saving";
  if (stage == "sample") return "sampling weights";
  if (stage == "train") return "training the codebook";
  if (stage == "shadow") return "making shadows";
  return stage;
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return Format(value < 10 ? "%.1f " : "%.0f ", value) + kUnits[unit];
}

std::string DurationText(double seconds) {
  const auto whole = static_cast<uint64_t>(std::max(0.0, seconds) + 0.5);
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) {
    return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  }
  return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

std::string ProgressText(const protocol::Progress& progress, double seconds) {
  if (progress.stage == "queue") {
    return "waiting: " + std::to_string(progress.done) + " requests before this one";
  }
  std::string text = StageText(progress.stage);
  if (progress.total == 0) return text;
  const double part = std::clamp(
      static_cast<double>(progress.done) / static_cast<double>(progress.total), 0.0, 1.0);
  const auto full = static_cast<size_t>(part * kBarWidth);
  text += Format(" %3.0f %% ", part * 100);
  text += '[';
  text.append(full, '#').append(kBarWidth - full, '-') += ']';
  if (progress.unit != "percent") {
    text += ' ';
    text += AmountText(progress.done, progress.unit) + " of " +
            AmountText(progress.total, progress.unit);
  }
  if (seconds < 1 || progress.done == 0) return text;
  const double rate = static_cast<double>(progress.done) / seconds;
  if (progress.unit != "percent") {
    text += ", ";
    text += AmountText(static_cast<uint64_t>(rate), progress.unit) + "/s";
  }
  if (progress.done < progress.total) {
    const double left = static_cast<double>(progress.total - progress.done) / rate;
    text += ", ";
    text += DurationText(left) + " left";
  }
  return text;
}

ProgressLine::ProgressLine(bool enabled)
    : enabled_(enabled), stage_start_(Clock::now()), last_drawn_(stage_start_ - kRedraw) {}

ProgressLine::~ProgressLine() {
  Clear();
}

void ProgressLine::Show(const protocol::Progress& progress) {
  if (!enabled_) return;
  const Deadline now = Clock::now();
  if (progress.stage != stage_) {
    stage_ = progress.stage;
    stage_start_ = now;
  } else if (now - last_drawn_ < kRedraw) {
    return;
  }
  last_drawn_ = now;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - stage_start_).count();
  const std::string line = "\r\x1b[K" + ProgressText(progress, seconds);
  std::fputs(line.c_str(), stderr);
}

void ProgressLine::Clear() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
}

}  // namespace mk::client
