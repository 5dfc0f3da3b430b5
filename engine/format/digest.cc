#include "engine/format/digest.h"

// The library's code, compiled in: what a digest keeps on the way is then that of this build, and
// can be saved field by field.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace mk {
namespace {

std::string ToHex(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// Values as they lie in memory, one after the other.
template <typename... T>
std::string PutAll(const T&... values) {
  static_assert((std::is_trivially_copyable_v<T> && ...));
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  return bytes;
}
template <typename... T>
bool TakeAll(std::string_view bytes, T&... values) {
  if (bytes.size() != (sizeof values + ...)) return false;
  size_t at = 0;
  ((std::memcpy(&values, bytes.data() + at, sizeof values), at += sizeof values), ...);
  return true;
}

}  // namespace

struct Xxh3Digest::State {
  XXH3_state_t xxh;
};

Xxh3Digest::Xxh3Digest() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh);
  XXH3_128bits_reset(&state_->xxh);
}

Xxh3Digest::~Xxh3Digest() = default;

void Xxh3Digest::Update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::string Xxh3Digest::Hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh));
  return ToHex(canonical.digest);
}

// What a digest without a seed changes as it goes; the rest is as after a reset.
std::string Xxh3Digest::Save() const {
  const XXH3_state_t& from = state_->xxh;
  return PutAll(uint32_t{XXH_VERSION_NUMBER}, from.acc, from.buffer, from.bufferedSize,
                from.nbStripesSoFar, from.totalLen);
}

bool Xxh3Digest::Restore(std::string_view saved) {
  uint32_t version = 0;
  State read;
  XXH3_INITSTATE(&read.xxh);
  XXH3_128bits_reset(&read.xxh);
  XXH3_state_t& to = read.xxh;
  if (!TakeAll(saved, version, to.acc, to.buffer, to.bufferedSize, to.nbStripesSoFar,
               to.totalLen)) {
    return false;
  }
  if (version != XXH_VERSION_NUMBER || to.bufferedSize > sizeof to.buffer ||
      to.nbStripesSoFar >= to.nbStripesPerBlock) {
    return false;
  }
  *state_ = read;
  return true;
}

uint64_t Xxh3Of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void Sha256Digest::Update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  total_bytes_ += bytes.size();
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  if (pending_bytes_ > 0) {
    const size_t take = std::min(left, pending_.size() - pending_bytes_);
    std::memcpy(pending_.data() + pending_bytes_, data, take);
    pending_bytes_ += take;
    data += take;
    left -= take;
    if (pending_bytes_ < pending_.size()) return;
    Block(pending_.data());
    pending_bytes_ = 0;
  }
  for (; left >= pending_.size(); data += pending_.size(), left -= pending_.size()) Block(data);
  std::memcpy(pending_.data(), data, left);
  pending_bytes_ = left;
}

void Sha256Digest::Block(const uint8_t* block) {
  std::array<uint32_t, 64> w{};
  for (size_t t = 0; t < 16; ++t) {
    w[t] = uint32_t{block[4 * t]} << 24 | uint32_t{block[4 * t + 1]} << 16 |
           uint32_t{block[4 * t + 2]} << 8 | uint32_t{block[4 * t + 3]};
  }
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + s1 + choice + kRoundConstants[t] + w[t];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + s0 + majority;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state_.size(); ++i) state_[i] += add[i];
}

std::string Sha256Digest::FinishHex() {
  const uint64_t bits = total_bytes_ * 8;
  const std::array<std::byte, 64> padding = {std::byte{0x80}};
  // One 0x80, zeros up to 8 bytes before the end of a block, the length in bits.
  const size_t zeros = (pending_bytes_ < 56 ? 56 : 120) - pending_bytes_;
  Update(std::span(padding).first(zeros));
  std::array<std::byte, 8> length{};
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  Update(length);
  std::array<uint8_t, 32> digest{};
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return ToHex(digest);
}

std::string Sha256Digest::Save() const {
  return PutAll(state_, pending_, uint64_t{pending_bytes_}, total_bytes_);
}

bool Sha256Digest::Restore(std::string_view saved) {
  Sha256Digest read;
  uint64_t pending_bytes = 0;
  if (!TakeAll(saved, read.state_, read.pending_, pending_bytes, read.total_bytes_)) return false;
  if (pending_bytes >= read.pending_.size()) return false;
  read.pending_bytes_ = pending_bytes;
  *this = read;
  return true;
}

}  // namespace mk
