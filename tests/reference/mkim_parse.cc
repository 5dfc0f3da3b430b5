#include "tests/reference/mkim_parse.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace mk::reference {
namespace {

class Cursor {
 public:
  explicit Cursor(const std::vector<uint8_t>& bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    std::memcpy(&value, Need(sizeof(T)), sizeof(T));
    return value;
  }

  std::string TakeString(size_t length) {
    return std::string(reinterpret_cast<const char*>(Need(length)), length);
  }

 private:
  const uint8_t* Need(size_t count) {
    if (count > bytes_.size() - position_) throw std::runtime_error("short MKIM file");
    const uint8_t* at = bytes_.data() + position_;
    position_ += count;
    return at;
  }

  const std::vector<uint8_t>& bytes_;
  size_t position_ = 0;
};

constexpr double kLevels[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// e2m1: bit 3 is the sign, the low three bits pick a level.
double DecodeNibble(uint8_t code) {
  return (code & 8) ? -kLevels[code & 7] : kLevels[code & 7];
}

std::vector<double> DecodeMxfp4(const Tensor& tensor, bool quadratic) {
  const size_t rows = tensor.dims.at(0);
  const size_t cols = tensor.dims.at(1);
  const uint8_t* packed = tensor.bytes.data();
  const uint8_t* scales = packed + rows * cols / 2;
  float smax = 0;
  if (quadratic) std::memcpy(&smax, scales + rows * cols / 32, sizeof(smax));
  std::vector<double> out(rows * cols);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const uint8_t byte = packed[(r * cols + c) / 2];
      const uint8_t code = (c % 2 == 0) ? byte & 15 : byte >> 4;
      const uint8_t s = scales[(r * cols + c) / 32];
      const double fraction = (s + 1) / 256.0;
      const double scale = quadratic ? fraction * fraction * smax : std::ldexp(1.0, s - 127);
      out[r * cols + c] = DecodeNibble(code) * scale;
    }
  }
  return out;
}

}  // namespace

ParsedModel ParseMkim(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(stream)), {});
  Cursor cursor(bytes);
  if (cursor.TakeString(8) != "MKIM0002") throw std::runtime_error("not MKIM0002: " + path);
  ParsedModel model;
  model.config = nlohmann::json::parse(cursor.TakeString(cursor.Take<uint32_t>()));
  const uint32_t count = cursor.Take<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name = cursor.TakeString(cursor.Take<uint16_t>());
    Tensor tensor;
    tensor.dtype = cursor.Take<uint8_t>();
    tensor.dims.resize(cursor.Take<uint8_t>());
    for (uint32_t& dim : tensor.dims) dim = cursor.Take<uint32_t>();
    const uint64_t offset = cursor.Take<uint64_t>();
    const uint64_t size = cursor.Take<uint64_t>();
    tensor.bytes.assign(bytes.begin() + static_cast<std::ptrdiff_t>(offset),
                        bytes.begin() + static_cast<std::ptrdiff_t>(offset + size));
    model.tensors.emplace(name, std::move(tensor));
  }
  return model;
}

std::vector<double> Decode(const Tensor& tensor, const std::vector<double>& codebook) {
  std::vector<double> out;
  switch (tensor.dtype) {
    case 0:
      out.resize(tensor.bytes.size() / 4);
      for (size_t i = 0; i < out.size(); ++i) {
        float value = 0;
        std::memcpy(&value, &tensor.bytes[4 * i], 4);
        out[i] = value;
      }
      return out;
    case 2:
      out.resize(tensor.bytes.size() / 4);
      for (size_t i = 0; i < out.size(); ++i) {
        int32_t value = 0;
        std::memcpy(&value, &tensor.bytes[4 * i], 4);
        out[i] = value;
      }
      return out;
    case 16:
      out.resize(tensor.bytes.size() / 2);
      for (size_t i = 0; i < out.size(); ++i) {
        const uint32_t bits = (tensor.bytes[2 * i] | tensor.bytes[2 * i + 1] << 8) * 65536U;
        float value = 0;
        std::memcpy(&value, &bits, 4);
        out[i] = value;
      }
      return out;
    case 1:
      return DecodeMxfp4(tensor, false);
    case 4:
      return DecodeMxfp4(tensor, true);
    case 3:
      for (const uint8_t index : tensor.bytes) {
        out.insert(out.end(), codebook.begin() + index * 16, codebook.begin() + index * 16 + 16);
      }
      return out;
    default:
      throw std::runtime_error("unexpected dtype");
  }
}

}  // namespace mk::reference
