#include "engine/model/model.h"

namespace mk {
namespace {

constexpr std::string_view kNames[kPrecisions] = {"exact", "bf16", "q8"};

}  // namespace

std::string_view PrecisionName(Precision precision) {
  return kNames[static_cast<size_t>(precision)];
}

std::optional<Precision> ParsePrecision(std::string_view name) {
  for (size_t i = 0; i < kPrecisions; ++i) {
    if (kNames[i] == name) return static_cast<Precision>(i);
  }
  return std::nullopt;
}

}  // namespace mk
