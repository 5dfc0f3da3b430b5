#include "protocol/utf8.h"

#include <gtest/gtest.h>

namespace mk::protocol {
namespace {

constexpr size_t kWellFormed = std::string_view::npos;

// Encodes a code point by the definition of UTF-8, without asking whether it may be encoded.
std::string Encode(uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  if (c < 0x10000) {
    return {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  }
  return {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
          static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
}

TEST(Utf8, EveryCodePointIsJudgedByTheStandard) {
  for (uint32_t c = 0; c < 0x120000; ++c) {
    const bool allowed = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    EXPECT_EQ(FindInvalidUtf8(Encode(c)), allowed ? kWellFormed : 0) << std::hex << c;
  }
}

TEST(Utf8, OverlongFormsAreRefused) {
  EXPECT_EQ(FindInvalidUtf8("\xC0\x80"), 0u);
  EXPECT_EQ(FindInvalidUtf8("\xC1\xBF"), 0u);
  EXPECT_EQ(FindInvalidUtf8("\xE0\x9F\xBF"), 0u);
  EXPECT_EQ(FindInvalidUtf8("\xF0\x8F\xBF\xBF"), 0u);
}

TEST(Utf8, TheOffsetIsThatOfTheBadCharacter) {
  const std::string ascii(37, 'a');
  EXPECT_EQ(FindInvalidUtf8(ascii + "\xFF"), 37u);
  EXPECT_EQ(FindInvalidUtf8(ascii + "\xC3\xA9\x80 and more text"), 39u);
  EXPECT_EQ(FindInvalidUtf8(ascii + "\xE2\x82"), 37u);  // cut off
  EXPECT_EQ(FindInvalidUtf8(ascii), kWellFormed);
  EXPECT_EQ(FindInvalidUtf8(""), kWellFormed);
}

TEST(Utf8, EveryByteOfACharacterIsJudged) {
  EXPECT_EQ(FindInvalidUtf8("\xF5\x80\x80\x80"), 0u);  // no character starts with F5
  EXPECT_EQ(FindInvalidUtf8(std::string_view("\xC3\xA9", 1)), 0u);
  for (const char* text :
       {"\xE2\x82\x7F", "\xE2\x82\xC0", "\xF0\x9F\x98\x7F", "\xF0\x9F\x98\xC0"}) {
    EXPECT_EQ(FindInvalidUtf8(text), 0u);
  }
  for (size_t at = 0; at < 20; ++at) {
    EXPECT_EQ(FindInvalidUtf8(std::string(at, 'a') + "\xFF" + std::string(20, 'a')), at);
  }
}

TEST(Utf8, ReplacingLeavesWellFormedText) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
}

}  // namespace
}  // namespace mk::protocol
