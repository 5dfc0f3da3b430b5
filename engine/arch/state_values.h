// Checks of arrays that come from a file, before they become the state of a sequence.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mk {

// The bytes of a section as floats; sections are read into memory that is aligned for them.
inline std::span<const float> FloatsOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
inline std::span<float> FloatsOf(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
inline std::span<const int8_t> CodesOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const int8_t*>(bytes.data()), bytes.size()};
}
inline std::span<int8_t> CodesOf(std::span<std::byte> bytes) {
  return {reinterpret_cast<int8_t*>(bytes.data()), bytes.size()};
}

inline bool AllFinite(std::span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// Scales of quantised groups: finite and not negative.
inline bool AllScales(std::span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value) || std::signbit(value)) return false;
  }
  return true;
}

// Codes that a quantiser writes: the kernels rely on there being no -128.
inline bool AllWithin(std::span<const int8_t> codes, int8_t most) {
  for (const int8_t code : codes) {
    if (code < -most || code > most) return false;
  }
  return true;
}

}  // namespace mk
