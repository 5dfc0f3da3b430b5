#include "engine/format/digest.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace mk
