#include "engine/sampling/random.h"

#include <string>

namespace mk {
namespace {

double ToUniform(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

Result<RandomProfile> ParseRandomProfile(std::string_view name) {
  if (name == "philox") return RandomProfile::kPhilox;
  if (name == "compat-1") return RandomProfile::kCompat1;
  return Fail(ErrorCode::kInvalidArgument, "unknown random profile \"" + std::string(name) + "\"",
              "use philox or compat-1");
}

std::string_view RandomProfileName(RandomProfile profile) {
  return profile == RandomProfile::kPhilox ? "philox" : "compat-1";
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * counter[0];
    const uint64_t p1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint64_t XorShift64Star::Next() {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return state_ * 0x2545F4914F6CDD1Dull;
}

double Random::Uniform(uint64_t index) {
  if (profile_ == RandomProfile::kPhilox) {
    const auto words =
        Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                   {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    return ToUniform(uint64_t{words[1]} << 32 | words[0]);
  }
  if (index < next_) {
    xorshift_ = XorShift64Star(seed_);
    next_ = 0;
  }
  uint64_t bits = 0;
  for (; next_ <= index; ++next_) bits = xorshift_.Next();
  return ToUniform(bits);
}

}  // namespace mk
