// Recipe: the dimensions and gains of a preset, and the overrides of both. `Gains` is the struct of
// an architecture's standard deviations and gains.

#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/strict_json.h"
#include "engine/build/model_plan.h"

namespace mk {

// A named field of Gains.
template <typename Gains>
struct GainKey {
  const char* key;  // as in overrides
  double Gains::*field;
  double min;
};

template <typename Gains>
struct Recipe {
  nlohmann::ordered_json dimensions;  // config keys in the order of the file
  Gains gains;
};

template <typename Gains>
Status SetGain(const GainKey<Gains>& gain, const nlohmann::json& value, Gains& gains) {
  constexpr double kMax = 1e6;
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= gain.min && number <= kMax)) {
    return Fail(ErrorCode::kInvalidArgument,
                std::string(gain.key) + " is " + value.dump() + ", it must be a number from " +
                    nlohmann::json(gain.min).dump() + " to 1e6",
                "for example --set " + std::string(gain.key) + "=1");
  }
  gains.*gain.field = number;
  return {};
}

// Applies overrides. `optional_keys` are dimensions that appear in a config only when they are
// overridden. Values of dimensions are checked later, with the config. kInvalidArgument.
template <typename Gains>
Status Override(const Overrides& overrides, const std::vector<GainKey<Gains>>& gains,
                const std::vector<std::string>& optional_keys, Recipe<Gains>& recipe) {
  for (const auto& [key, text] : overrides) {
    const auto value = ParseStrictJson(text, "value of " + key);
    if (!value) {
      return Fail(ErrorCode::kInvalidArgument, value.error().message,
                  "give a JSON value: 64, 0.5, [0,3], \"head\"");
    }
    const auto gain = std::find_if(gains.begin(), gains.end(),
                                   [&name = key](const auto& g) { return name == g.key; });
    if (gain != gains.end()) {
      if (Status set = SetGain(*gain, *value, recipe.gains); !set) return set;
      continue;
    }
    const bool optional =
        std::find(optional_keys.begin(), optional_keys.end(), key) != optional_keys.end();
    if (!optional && !recipe.dimensions.contains(key)) {
      std::string known;
      for (const auto& [dimension, unused] : recipe.dimensions.items()) known += dimension + ", ";
      for (const std::string& name : optional_keys) known += name + ", ";
      for (const auto& g : gains) known += std::string(g.key) + ", ";
      return Fail(ErrorCode::kInvalidArgument, "unknown key \"" + key + "\"",
                  "known keys: " + known.substr(0, known.size() - 2));
    }
    recipe.dimensions[key] = *value;
  }
  return {};
}

// The record of a build in its config.
template <typename Gains>
nlohmann::ordered_json RecordOf(const std::string& preset, uint64_t seed,
                                const std::vector<GainKey<Gains>>& keys, const Gains& gains) {
  nlohmann::ordered_json recorded;
  for (const GainKey<Gains>& gain : keys) recorded[gain.key] = gains.*gain.field;
  return {{"generator", "mkgen-1"}, {"seed", seed}, {"preset", preset}, {"gains", recorded}};
}

}  // namespace mk
