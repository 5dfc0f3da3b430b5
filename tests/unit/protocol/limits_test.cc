// Every limit of a message: what is within it passes, one more is refused.

#include <gtest/gtest.h>

#include "protocol/scan.h"
#include "tests/unit/protocol/wire.h"

namespace mk::protocol {
namespace {

using testing::json;
using testing::Pack;

std::string ScanError(const std::string& bytes, const Limits& limits) {
  const Status status = Scan(bytes, limits);
  if (status) return {};
  EXPECT_EQ(status.error().code, ErrorCode::kBadRequest);
  return status.error().message;
}

// Limits far above all but the one that a test is about.
Limits Small() {
  Limits limits;
  limits.message_bytes = 4096;
  return limits;
}

void ExpectOnly(const json& within, const json& beyond, const Limits& limits, const char* words) {
  EXPECT_EQ(ScanError(Pack(within), limits), "");
  EXPECT_NE(ScanError(Pack(beyond), limits).find(words), std::string::npos)
      << ScanError(Pack(beyond), limits);
}

TEST(Limits, MessageSize) {
  Limits limits = Small();
  limits.message_bytes = 10;
  ExpectOnly(std::string(9, 'x'), std::string(10, 'x'), limits, "too many bytes");
}

TEST(Limits, Depth) {
  Limits limits = Small();
  limits.depth = 3;
  ExpectOnly(json::array({json::array({json::array({1})})}),
             json::array({json::array({json::array({json::array()})})}), limits, "nested");
  // Maps count as well.
  ExpectOnly({{"a", {{"b", {{"c", 1}}}}}}, {{"a", {{"b", {{"c", json::object()}}}}}}, limits,
             "nested");
}

TEST(Limits, MapEntries) {
  Limits limits = Small();
  limits.map_entries = 2;
  ExpectOnly({{"a", 1}, {"b", 2}}, {{"a", 1}, {"b", 2}, {"c", 3}}, limits, "entries of a map");
}

TEST(Limits, ArrayItems) {
  Limits limits = Small();
  limits.array_items = 2;
  ExpectOnly(json::array({1, 2}), json::array({1, 2, 3}), limits, "items of a list");
}

TEST(Limits, TextBytes) {
  Limits limits = Small();
  limits.text_bytes = 4;
  ExpectOnly("abcd", "abcde", limits, "bytes of text");
}

TEST(Limits, BinaryBytes) {
  Limits limits = Small();
  limits.binary_bytes = 2;
  ExpectOnly(json::binary({1, 2}), json::binary({1, 2, 3}), limits, "binary data");
}

TEST(Limits, ValuesInTotal) {
  Limits limits = Small();
  limits.values = 5;
  ExpectOnly(json::array({1, 2, json::array({3})}), json::array({1, 2, json::array({3, 4})}),
             limits, "values in one message");
}

TEST(Limits, KeyBytes) {
  Limits limits = Small();
  limits.key_bytes = 3;
  ExpectOnly({{"abc", 1}}, {{"abcd", 1}}, limits, "map's key");
}

TEST(Limits, TheRealOnesAreThoseOfTheDocumentation) {
  EXPECT_EQ(kLimits.message_bytes, size_t{64} << 20);
  EXPECT_EQ(kLimits.depth, 32u);
  EXPECT_EQ(kLimits.map_entries, 4096u);
  EXPECT_EQ(kLimits.array_items, size_t{1} << 20);
  EXPECT_EQ(kLimits.text_bytes, size_t{16} << 20);
  EXPECT_EQ(kLimits.values, size_t{1} << 21);
  EXPECT_EQ(kLimits.key_bytes, 64u);
  EXPECT_EQ(kMaxPieceBytes, size_t{8} << 20);
}

TEST(Limits, DepthEndsWithTheScannersStack) {
  Limits limits = Small();
  limits.depth = 100;
  EXPECT_EQ(ScanError(std::string(63, '\x91') + "\x90", limits), "");
  EXPECT_NE(ScanError(std::string(64, '\x91') + "\x90", limits).find("nested"), std::string::npos);
}

TEST(Scan, KeysMustBeUtf8) {
  EXPECT_NE(ScanError("\x81\xA1\xFF\x01", kLimits).find("key that is not UTF-8"),
            std::string::npos);
}

TEST(Scan, TheIdIsTheNumberAtTheTopOnly) {
  const std::string bytes = Pack({{"id", {{"x", 5}}}});
  uint64_t id = 0;
  EXPECT_TRUE(Scan(bytes, kLimits, &id));
  EXPECT_EQ(id, 0u);
  EXPECT_TRUE(Scan(Pack({{"id", 5}}), kLimits, &id));
  EXPECT_EQ(id, 5u);
}

TEST(Scan, KeysMustBeText) {
  EXPECT_NE(ScanError(std::string("\x81\x01\x02", 3), kLimits).find("key that is not text"),
            std::string::npos);
  EXPECT_NE(ScanError(std::string("\x81\x90\x02", 3), kLimits), "");       // a list as the key
  EXPECT_NE(ScanError(std::string("\x81\xC4\x01x\x02", 5), kLimits), "");  // a binary as the key
}

TEST(Scan, ExtensionsAreRefused) {
  EXPECT_NE(ScanError(std::string("\xD4\x01\x02", 3), kLimits).find("extension"),
            std::string::npos);
}

TEST(Scan, BytesBehindTheValueAreRefused) {
  EXPECT_NE(ScanError(std::string("\x01\x02", 2), kLimits).find("follow"), std::string::npos);
}

TEST(Scan, CutOffMessagesAreRefused) {
  const std::string whole = Pack({{"a", json::array({1, "text", 2.5})}});
  ASSERT_EQ(ScanError(whole, kLimits), "");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(ScanError(whole.substr(0, size), kLimits), "") << size;
  }
}

TEST(Scan, IllFormedUtf8NamesFieldAndOffset) {
  const std::string bytes = Pack({{"args", {{"stop", json::array({"fine", "caf\xC3"})}}}});
  const Status status = Scan(bytes);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("`stop[1]`"), std::string::npos);
  EXPECT_EQ(std::get<std::string>(status.error().details.at("field")), "stop[1]");
  EXPECT_EQ(std::get<int64_t>(status.error().details.at("byte_offset")), 3);
}

}  // namespace
}  // namespace mk::protocol
