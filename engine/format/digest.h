// Digests of file contents: XXH3-128 (fast, against damage) and SHA-256 (against tampering).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct XXH3_state_s;

namespace mk {

class Xxh3Digest {
 public:
  Xxh3Digest();
  void Update(std::span<const std::byte> bytes);
  // 32 lower-case hex digits, the canonical big-endian form.
  std::string Hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// XXH3-64 of bytes that are in memory.
uint64_t Xxh3Of(std::span<const std::byte> bytes);

// FIPS 180-4.
class Sha256Digest {
 public:
  void Update(std::span<const std::byte> bytes);
  // 64 lower-case hex digits. Ends the digest.
  std::string FinishHex();

 private:
  void Block(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  size_t pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace mk
