// Digests of file contents: XXH3-128 (fast, against damage) and SHA-256 (against tampering).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mk {

// Both digests can be saved on the way and gone on with later, by another process of the same
// build.
class Xxh3Digest {
 public:
  Xxh3Digest();
  ~Xxh3Digest();
  Xxh3Digest(const Xxh3Digest&) = delete;
  Xxh3Digest& operator=(const Xxh3Digest&) = delete;

  void Update(std::span<const std::byte> bytes);
  // 32 lower-case hex digits, the canonical big-endian form.
  std::string Hex() const;

  std::string Save() const;
  // Goes on where `saved` was. False, and nothing changes, for bytes that no Save() gave.
  bool Restore(std::string_view saved);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3-64 of bytes that are in memory.
uint64_t Xxh3Of(std::span<const std::byte> bytes);

// FIPS 180-4.
class Sha256Digest {
 public:
  void Update(std::span<const std::byte> bytes);
  // 64 lower-case hex digits. Ends the digest.
  std::string FinishHex();

  std::string Save() const;
  bool Restore(std::string_view saved);  // as Xxh3Digest's

 private:
  void Block(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  size_t pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace mk
