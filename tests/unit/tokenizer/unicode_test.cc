#include "engine/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/tokenizer/utf8_stream.h"

namespace mk {
namespace {

std::string Encode(char32_t c) {
  std::string out;
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)),
        put(0x80 | (c & 63));
  }
  return out;
}

TEST(Unicode, EveryScalarValueDecodesToItself) {
  std::string text;
  std::vector<char32_t> values;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    text += Encode(c);
    values.push_back(c);
  }
  const Result<CodePoints> decoded = DecodeUtf8(text);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->values, values);
  EXPECT_EQ(decoded->offsets.back(), text.size());
}

TEST(Unicode, IllFormedTextIsRefusedWithItsOffset) {
  for (const std::string& bad :
       {std::string("\x80"), std::string("\xC0\x80"), std::string("\xC1\xBF"),
        std::string("\xE0\x9F\xBF"), std::string("\xED\xA0\x80"), std::string("\xF0\x8F\xBF\xBF"),
        std::string("\xF4\x90\x80\x80"), std::string("\xF5\x80\x80\x80"), std::string("\xFF"),
        std::string("\xE2\x82"), std::string("\xC3")}) {
    const Result<CodePoints> decoded = DecodeUtf8("ab" + bad);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(decoded.error().message.find("offset 2"), std::string::npos);
  }
}

TEST(Unicode, ReplacementCountsMaximalSubparts) {
  // The example of the Unicode standard, section 3.9: U+FFFD substitution of maximal subparts.
  EXPECT_EQ(ReplaceIllFormed("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(ReplaceIllFormed("\xE0\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceIllFormed("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(ReplaceIllFormed("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
}

TEST(Unicode, PropertiesOfKnownCharacters) {
  EXPECT_EQ(PropertiesOf(U'A').category(), Category::kLu);
  EXPECT_EQ(PropertiesOf(U'\u01C5').category(), Category::kLt);
  EXPECT_EQ(PropertiesOf(U'\u02B0').category(), Category::kLm);
  EXPECT_EQ(PropertiesOf(U'\u2167').category(), Category::kNl);
  EXPECT_EQ(PropertiesOf(U'\u094D').category(), Category::kMn);
  EXPECT_EQ(PropertiesOf(U'\u24B6').category(), Category::kSo);
  EXPECT_EQ(PropertiesOf(0x10FFFF).category(), Category::kCn);
  EXPECT_EQ(PropertiesOf(0x110000).category(), Category::kCn);
  for (const char32_t han : {U'\u3005', U'\u3007', U'\u2E80', U'\u4E00', U'\U0002EBF0'}) {
    EXPECT_TRUE(PropertiesOf(han).IsHan());
  }
  for (const char32_t other : {U'\u3000', U'\u30C6', U'\uAC00', U'a'}) {
    EXPECT_FALSE(PropertiesOf(other).IsHan());
  }
  size_t spaces = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) spaces += PropertiesOf(c).IsWhiteSpace() ? 1 : 0;
  EXPECT_EQ(spaces, 25u);  // as many as the White_Space property has had since Unicode 6.3
}

TEST(Utf8Stream, PiecesTogetherEqualTheWholeForEverySplit) {
  std::mt19937 random(3);
  const std::vector<std::string> parts = {"a",    "é",        "€",           "😀",
                                          "\x80", "\xE2\x82", "\xF0\x9F",    "\xED\xA0",
                                          "\xC3", "\xFF",     "\xF4\x8F\xBF"};
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (size_t n = random() % 8; n > 0; --n) bytes += parts[random() % parts.size()];
    Utf8Stream stream;
    std::string text;
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = std::min<size_t>(bytes.size() - i, random() % 5);
      const std::string piece = stream.Push(std::string_view(bytes).substr(i, n));
      EXPECT_TRUE(DecodeUtf8(piece)) << "a piece must be whole characters";
      EXPECT_LE(stream.pending(), 3u);
      text += piece;
      i += n;
    }
    text += stream.Break();
    ASSERT_EQ(text, ReplaceIllFormed(bytes));
  }
}

TEST(Utf8Stream, HoldsBackNothingThatIsComplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("a\xE2"), "a");
  EXPECT_EQ(stream.Push("\x82"), "");
  EXPECT_EQ(stream.pending(), 2u);
  EXPECT_EQ(stream.Push("\xAC!"), "€!");
  EXPECT_EQ(stream.pending(), 0u);
  EXPECT_EQ(stream.Push("\xF0\x9F"), "");
  EXPECT_EQ(stream.Break(), "\uFFFD");
  EXPECT_EQ(stream.Break(), "");
}

}  // namespace
}  // namespace mk
