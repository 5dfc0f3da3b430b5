// ConfigReader: typed, range-checked values out of one JSON object. The first error is kept and
// everything after it may be ignored; absent keys leave their target alone.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"

namespace mk {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string what, std::string prefix = {})
      : object_(object), what_(std::move(what)), prefix_(std::move(prefix)) {}

  bool Has(const char* key) const { return object_.contains(key); }

  // An integer-valued number in [min, max]. False when the key is absent or the value is bad.
  template <typename T>
  bool Integer(const char* key, int64_t min, int64_t max, T& out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    int64_t number = 0;
    if (!ToInteger(*value, number) || number < min || number > max) {
      return Bad(key, *value,
                 "must be an integer from " + std::to_string(min) + " to " + std::to_string(max));
    }
    out = static_cast<T>(number);
    return true;
  }

  // A finite number, rounded to f32, that `accept` takes.
  bool Float(const char* key, bool (*accept)(float), const char* rule, float& out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    const float number = value->is_number() ? static_cast<float>(value->get<double>())
                                            : std::numeric_limits<float>::quiet_NaN();
    if (!std::isfinite(number) || !accept(number)) return Bad(key, *value, rule);
    out = number;
    return true;
  }

  bool String(const char* key, std::string& out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_string()) return Bad(key, *value, "must be a string");
    out = value->get<std::string>();
    return true;
  }

  // Strictly ascending layer numbers below `n_layers`.
  bool Layers(const char* key, uint32_t n_layers, std::vector<uint32_t>& out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    const char* rule = "must be a strictly ascending list of layer numbers below n_layers";
    if (!value->is_array()) return Bad(key, *value, rule);
    out.clear();
    for (const nlohmann::json& item : *value) {
      int64_t layer = 0;
      if (!ToInteger(item, layer) || layer < 0 || layer >= n_layers ||
          (!out.empty() && layer <= out.back())) {
        return Bad(key, *value, rule);
      }
      out.push_back(static_cast<uint32_t>(layer));
    }
    return true;
  }

  // A list of integers in [min, max].
  bool Integers(const char* key, int64_t min, int64_t max, std::vector<uint32_t>& out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    const std::string rule =
        "must be a list of integers from " + std::to_string(min) + " to " + std::to_string(max);
    if (!value->is_array()) return Bad(key, *value, rule);
    out.clear();
    for (const nlohmann::json& item : *value) {
      int64_t number = 0;
      if (!ToInteger(item, number) || number < min || number > max) return Bad(key, *value, rule);
      out.push_back(static_cast<uint32_t>(number));
    }
    return true;
  }

  bool Boolean(const char* key, bool& out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return Bad(key, *value, "must be true or false");
    out = value->get<bool>();
    return true;
  }

  bool Object(const char* key, const nlohmann::json*& out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_object()) return Bad(key, *value, "must be an object");
    out = value;
    return true;
  }

  bool Bad(const std::string& key, const nlohmann::json& value, const std::string& rule) {
    std::string shown = value.dump();
    if (shown.size() > 40) shown = shown.substr(0, 37) + "...";
    return Refuse("key \"" + prefix_ + key + "\" is " + shown + ", it " + rule);
  }
  bool Refuse(const std::string& problem) {
    if (status_) {
      status_ = Fail(ErrorCode::kCorrupt, what_ + ": " + problem,
                     "the file was written wrongly; export or build it again");
    }
    return false;
  }
  void Merge(const ConfigReader& other) {
    if (status_ && !other.status_) status_ = other.status_;
  }
  const Status& status() const { return status_; }
  // Put before keys in messages.
  const std::string& prefix() const { return prefix_; }

 private:
  const nlohmann::json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }

  static bool ToInteger(const nlohmann::json& value, int64_t& out) {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number > static_cast<uint64_t>(kExact)) return false;
      out = static_cast<int64_t>(number);
      return true;
    }
    if (value.is_number_integer()) {
      out = value.get<int64_t>();
      return true;
    }
    if (!value.is_number_float()) return false;
    const auto number = value.get<double>();
    if (!(std::fabs(number) <= kExact) || number != std::trunc(number)) return false;
    out = static_cast<int64_t>(number);
    return true;
  }

  const nlohmann::json& object_;
  std::string what_;
  std::string prefix_;
  Status status_;
};

}  // namespace mk
