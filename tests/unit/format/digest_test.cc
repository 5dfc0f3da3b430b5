#include "engine/format/digest.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace mk {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string Sha256(std::string_view text, size_t step) {
  Sha256Digest digest;
  for (size_t at = 0; at < text.size(); at += step) digest.Update(Bytes(text.substr(at, step)));
  return digest.FinishHex();
}

TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(Sha256("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const char* two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  for (const size_t step : {1, 7, 55, 64, 100}) {
    EXPECT_EQ(Sha256(two_blocks, step),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  }
  const std::string million(1'000'000, 'a');
  EXPECT_EQ(Sha256(million, 4093),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Xxh3, EmptyInputAndPieces) {
  EXPECT_EQ(Xxh3Digest().Hex(), "99aa06d3014798d86001c324468d497f");
  const std::string text(5000, 'x');
  Xxh3Digest whole;
  whole.Update(Bytes(text));
  Xxh3Digest pieces;
  pieces.Update(Bytes(std::string_view(text).substr(0, 1234)));
  pieces.Update(Bytes(std::string_view(text).substr(1234)));
  EXPECT_EQ(whole.Hex(), pieces.Hex());
}

std::string Noise(size_t size) {
  std::string text(size, '\0');
  uint32_t x = 1;
  for (char& c : text) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  return text;
}

// The library's own digest of a whole text, in one call.
std::string Xxh3OfWhole(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  char hex[33];
  std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return hex;
}

// Around every size that the algorithm treats differently.
constexpr size_t kCuts[] = {0,   1,   16,  63,   64,   65,   240,  241,  255,
                            256, 257, 512, 1023, 1024, 1025, 1300, 4096, 70'001};

TEST(Xxh3, GoesOnFromWhereItWasSaved) {
  const std::string text = Noise(100'000);
  for (const size_t cut : kCuts) {
    for (const size_t end : kCuts) {
      if (end < cut) continue;
      Xxh3Digest first;
      first.Update(Bytes(std::string_view(text).substr(0, cut)));
      Xxh3Digest second;
      second.Update(Bytes("something else"));
      ASSERT_TRUE(second.Restore(first.Save()));
      second.Update(Bytes(std::string_view(text).substr(cut, end - cut)));
      EXPECT_EQ(second.Hex(), Xxh3OfWhole(std::string_view(text).substr(0, end)))
          << cut << " of " << end;
    }
  }
}

TEST(Xxh3, RefusesWhatItDidNotSave) {
  Xxh3Digest digest;
  digest.Update(Bytes(Noise(777)));
  const std::string saved = digest.Save();
  const std::string hex = digest.Hex();
  std::string other_version = saved;
  other_version[0] ^= 1;
  // Behind version (4), accumulators (64) and buffer (256): bytes in the buffer, then stripes.
  std::string full_buffer = saved;
  full_buffer.replace(4 + 64 + 256, 4, std::string("\x01\x01\0\0", 4));
  std::string many_stripes = saved;
  many_stripes.replace(4 + 64 + 256 + 4, 8, std::string("\x10\0\0\0\0\0\0\0", 8));
  for (const std::string& bad :
       {std::string(), saved.substr(1), saved + "x", other_version, full_buffer, many_stripes}) {
    EXPECT_FALSE(digest.Restore(bad));
    EXPECT_EQ(digest.Hex(), hex);
  }
}

TEST(Sha256, GoesOnFromWhereItWasSaved) {
  const std::string text = Noise(70'001);
  for (const size_t cut : kCuts) {
    Sha256Digest first;
    first.Update(Bytes(std::string_view(text).substr(0, cut)));
    Sha256Digest second;
    second.Update(Bytes("something else"));
    ASSERT_TRUE(second.Restore(first.Save()));
    second.Update(Bytes(std::string_view(text).substr(cut)));
    EXPECT_EQ(second.FinishHex(), Sha256(text, text.size())) << cut;
  }
}

TEST(Sha256, RefusesWhatItDidNotSave) {
  Sha256Digest digest;
  digest.Update(Bytes("abc"));
  const std::string saved = digest.Save();
  std::string full = saved;
  full[32 + 64] = 64;  // bytes that wait: a whole block would have been taken
  for (const std::string& bad : {std::string(), saved.substr(1), saved + "x", full}) {
    EXPECT_FALSE(digest.Restore(bad));
  }
  EXPECT_EQ(digest.FinishHex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace mk
