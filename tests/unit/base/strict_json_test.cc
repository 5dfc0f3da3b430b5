#include "engine/base/strict_json.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace mk {
namespace {

TEST(StrictJson, ReadsEveryKindOfValue) {
  const std::string text =
      R"( {"a":[1,-2,3.5,1e3],"b":{"c":null,"d":true},"e":"x\u00e9\"","f":18446744073709551615} )";
  const auto value = ParseStrictJson(text, "test");
  ASSERT_TRUE(value.has_value()) << value.error().ToString();
  // The library's own parser builds the same value.
  EXPECT_EQ(*value, nlohmann::json::parse(text));
  EXPECT_EQ((*value)["a"][1], -2);
  EXPECT_EQ((*value)["f"].get<uint64_t>(), ~uint64_t{0});
  EXPECT_TRUE(ParseStrictJson("7", "test").has_value());
  EXPECT_TRUE(ParseStrictJson("[]", "test").has_value());
  EXPECT_TRUE(ParseStrictJson(R"([[[{"a":[]}],{}],{"a":{"a":1}}])", "test").has_value());
}

TEST(StrictJson, RefusesWhatIsNotStrict) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "JSON"},
      {"{", "JSON"},
      {"{} {}", "JSON"},
      {"{}x", "JSON"},
      {std::string("{}\0", 3), "NUL"},
      {std::string("{\"a\":\"\0\"}", 9), "NUL"},
      {"\xEF\xBB\xBF{}", "byte order mark"},
      {"{\"a\":1,\"a\":2}", "\"a\" appears twice"},
      {"{\"b\":{\"a\":1,\"c\":[],\"a\":2}}", "\"a\" appears twice"},
      {"{\"\\u0061\":1,\"a\":2}", "\"a\" appears twice"},
      {"[1,]", "JSON"},
      {"[01]", "JSON"},
      {"[+1]", "JSON"},
      {"[.5]", "JSON"},
      {"[NaN]", "JSON"},
      {"[1e999]", "overflow"},
      {"['a']", "JSON"},
      {"[\"\x01\"]", "JSON"},
      {"[\"\xff\"]", "UTF-8"},
      {"[\"\xc0\xaf\"]", "UTF-8"},
      {"[\"\xed\xa0\x80\"]", "UTF-8"},
      {"[\"\\ud800\"]", "JSON"},
      {"// x\n1", "JSON"},
  };
  for (const auto& [text, reason] : cases) {
    const auto value = ParseStrictJson(text, "the thing");
    ASSERT_FALSE(value.has_value()) << text;
    EXPECT_EQ(value.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(value.error().message.find(reason), std::string::npos)
        << text << ": " << value.error().message;
    EXPECT_NE(value.error().message.find("the thing"), std::string::npos);
  }
}

TEST(StrictJson, DepthIsBounded) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseStrictJson(nested(16), "test", 16).has_value());
  EXPECT_FALSE(ParseStrictJson(nested(17), "test", 16).has_value());
  EXPECT_FALSE(ParseStrictJson(nested(1'000'000), "test").has_value());
}

TEST(StrictJson, KeysOfSiblingsDoNotClash) {
  EXPECT_TRUE(
      ParseStrictJson(R"({"a":{"x":1},"b":{"x":1},"x":[{"x":1},{"x":2}]})", "t").has_value());
}

}  // namespace
}  // namespace mk
