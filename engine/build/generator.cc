#include "engine/build/generator.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace mk {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr double kSqrt3 = 1.7320508075688772;
constexpr double kBellUnit = kSqrt3 / 65536.0;

// Nibble for each random byte. Runs of these lengths for the magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6
// make the mean square of the levels exactly 33/8; the sign bit doubles them, without a -0.
constexpr double kLevelMeanSquare = 4.125;

constexpr std::array<uint8_t, 256> MakeNibbleTable() {
  constexpr std::array<int, 8> kRuns = {24, 25, 22, 19, 22, 17, 9, 2};
  std::array<uint8_t, 256> table{};
  size_t at = 0;
  for (int code = 0; code < 16; ++code) {
    const int run = code == 8 ? 0 : kRuns[static_cast<size_t>(code % 8)];
    for (int i = 0; i < run; ++i) table[at++] = static_cast<uint8_t>(code);
  }
  return table;
}
constexpr std::array<uint8_t, 256> kNibbles = MakeNibbleTable();
static_assert(kNibbles[23] == 0 && kNibbles[24] == 1 && kNibbles[255] == 15);

// Four bytes of nibbles from one hash, columns in order, the first in the low nibble.
uint32_t CodeNibbles(uint64_t hash) {
  uint32_t packed = 0;
  for (unsigned i = 0; i < 8; ++i) {
    packed |= uint32_t{kNibbles[(hash >> (8 * i)) & 255]} << (4 * i);
  }
  return packed;
}

// Two neighbouring powers of two, mixed so that the mean of their squares is `square`.
struct ScaleMix {
  uint8_t low = 0;         // e8m0 byte of the smaller
  uint32_t threshold = 0;  // of 65536: how often the larger is taken
};

ScaleMix MixScales(double square) {
  int exponent = 0;
  std::frexp(square, &exponent);  // 2^(exponent-1) <= square < 2^exponent
  const int e = static_cast<int>(std::floor((exponent - 1) / 2.0));  // 4^e <= square < 4^(e+1)
  ScaleMix mix;
  mix.low = static_cast<uint8_t>(127 + e);
  mix.threshold = static_cast<uint32_t>(65536.0 * (square / std::ldexp(1.0, 2 * e) - 1.0) / 3.0);
  return mix;
}

}  // namespace

uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

uint64_t MixBits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

HashStream::HashStream(uint64_t seed, std::string_view name)
    : key_(MixBits(Fnv1a64(name) + MixBits(seed + kGolden))) {}

uint64_t HashStream::At(uint64_t index) const {
  return MixBits(key_ + (index + 1) * kGolden);
}

int32_t BellSum(uint64_t x) {
  const uint64_t pairs = (x & 0x0000ffff0000ffffu) + ((x >> 16) & 0x0000ffff0000ffffu);
  return static_cast<int32_t>((pairs & 0xffffffffu) + (pairs >> 32)) - 131070;
}

void FillNormal(const HashStream& stream, uint64_t first, float mean, double deviation,
                std::span<float> out) {
  const auto scale = static_cast<float>(deviation * kBellUnit);
  uint64_t counter = stream.key() + first * kGolden;
  for (float& value : out) {
    counter += kGolden;
    value = mean + static_cast<float>(BellSum(MixBits(counter))) * scale;
  }
}

void FillPermutation(const HashStream& stream, uint64_t first_row, uint32_t cols, uint32_t range,
                     std::span<int32_t> out) {
  std::vector<uint32_t> taken;  // ascending
  for (size_t row = 0; row < out.size() / cols; ++row) {
    taken.clear();
    for (uint32_t j = 0; j < cols; ++j) {
      const uint64_t hash = stream.At((first_row + row) * cols + j);
      auto pick = static_cast<uint32_t>((hash >> 32) * (range - j) >> 32);
      auto at = taken.begin();
      for (; at != taken.end() && *at <= pick; ++at) ++pick;
      taken.insert(at, pick);
      out[row * cols + j] = static_cast<int32_t>(pick);
    }
  }
}

void FillGrid(uint64_t first, uint64_t count, double begin, double end, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto index = static_cast<double>(first + i);
    const double step = count > 1 ? (end - begin) * index / static_cast<double>(count - 1) : 0.0;
    out[i] = static_cast<float>(begin + step);
  }
}

void FillCodedExpert(uint64_t seed, std::string_view name, uint64_t rows, uint64_t cols,
                     double gain, std::span<std::byte> blob) {
  const std::string expert(name.substr(0, name.rfind('.') + 1));
  const uint64_t draw = HashStream(seed, expert + "gain").At(0) >> 11;
  const double gamma = 0.75 + 0.5 * (static_cast<double>(draw) / 9007199254740992.0);
  const double deviation = gain * gamma / std::sqrt(static_cast<double>(cols));
  const ScaleMix mix = MixScales(deviation * deviation / kLevelMeanSquare);

  const HashStream codes(seed, name);
  std::byte* out = blob.data();
  const uint64_t words = rows * cols / 8;
  for (uint64_t i = 0; i < words; ++i, out += 4) {
    const uint32_t packed = CodeNibbles(codes.At(i));
    std::memcpy(out, &packed, sizeof packed);
  }
  const HashStream scales(seed, std::string(name) + "#scale");
  const uint64_t groups = rows * cols / 32;
  uint64_t hash = 0;
  for (uint64_t k = 0; k < groups; ++k) {
    if (k % 4 == 0) hash = scales.At(k / 4);
    const auto lane = static_cast<uint32_t>((hash >> (16 * (k % 4))) & 0xffff);
    *out++ = static_cast<std::byte>(mix.low + (lane < mix.threshold ? 1 : 0));
  }
}

}  // namespace mk
