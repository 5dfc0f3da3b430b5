// SHA-256 (FIPS 180-4), for digests that files record of each other.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mk {

// Takes bytes in pieces of any size. One thread at a time.
class Sha256 {
 public:
  void Update(std::span<const std::byte> bytes);
  // Digest of everything taken, as 64 lower-case hex digits; the object is used up.
  std::string FinishHex();

 private:
  void Block(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> buffer_{};
  uint64_t length_ = 0;  // bytes taken
};

// Digest of a text in memory.
std::string Sha256Hex(std::string_view bytes);

}  // namespace mk
