#include "engine/tokenizer/splitter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/tokenizer/unicode.h"
#include "tests/unit/tokenizer/test_vocab.h"

namespace mk {
namespace {

using Chunks = std::vector<std::string>;

Chunks Split(const std::string& text, const SplitLimits& limits = {}) {
  const Result<CodePoints> points = DecodeUtf8(text);
  EXPECT_TRUE(points);
  Chunks chunks;
  size_t begin = 0;
  for (const size_t end : SplitText(points->values, limits)) {
    const size_t from = points->offsets[begin];
    chunks.push_back(text.substr(from, points->offsets[end] - from));
    begin = end;
  }
  return chunks;
}

TEST(Splitter, KnownTexts) {
  const std::vector<std::pair<std::string, Chunks>> cases = {
      {"Hello world", {"Hello", " world"}},
      {"a  b", {"a", " ", " b"}},
      {"a  1", {"a", " ", " ", "1"}},
      {"a\t\t!b", {"a", "\t", "\t", "!b"}},
      {"it's DON'T we'LL", {"it's", " DON'T", " we'LL"}},
      {"(don't)", {"(don't", ")"}},
      {"HTTPServer camelCase", {"HTTPServer", " camel", "Case"}},
      {"12345", {"123", "45"}},
      {"$5.00 — ok", {"$", "5", ".", "00", " —", " ok"}},
      {"hello 你好 world", {"hello", " ", "你好", " world"}},
      {"第123页", {"第", "123", "页"}},
      {"日々〇⺀a", {"日々〇⺀", "a"}},
      {"テストABC", {"テスト", "ABC"}},
      {"ABCテスト", {"ABCテスト"}},
      {"नमस्ते", {"नमस्ते"}},
      {"❤️!", {"❤️", "!"}},
      {"Ⅷ8", {"Ⅷ8"}},
      {"x = 1;\n\n\tfoo", {"x", " =", " ", "1", ";\n\n", "\tfoo"}},
      {"a\r\n b", {"a", "\r\n", " b"}},
      {"one\n\n  two", {"one", "\n\n", " ", " two"}},
      {"  lead", {" ", " lead"}},
      {"trail  ", {"trail", "  "}},
      {" 你", {" ", "你"}},
      {"", {}},
  };
  for (const auto& [text, chunks] : cases) EXPECT_EQ(Split(text), chunks) << text;
}

// Texts with chunk ends and ids; see make_split_fixture.py.
TEST(Splitter, CutsLikeARegexEngineAndTheIdsAreTiktokens) {
  const char* larger = std::getenv("MK_SPLIT_FUZZ");
  const std::string path = larger ? larger : MK_TEST_DATA "/tokenizer/split_fuzz.jsonl";
  const Result<RankTable> ranks = RankTable::Parse(
      test::ReadFile(MK_TEST_DATA "/golden/tok/k3_nano.base.tiktoken"), "ranks", 8192);
  ASSERT_TRUE(ranks);
  std::ifstream file(path);
  size_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const nlohmann::json row = nlohmann::json::parse(line);
    const auto text = row[0].get<std::string>();
    const Result<CodePoints> points = DecodeUtf8(text);
    ASSERT_TRUE(points);
    const std::vector<size_t> ends = SplitText(points->values);
    ASSERT_EQ(ends, row[1].get<std::vector<size_t>>()) << line;
    std::vector<int32_t> ids;
    size_t begin = 0;
    for (const size_t end : ends) {
      const size_t from = points->offsets[begin];
      ranks->AppendChunk(std::string_view(text).substr(from, points->offsets[end] - from), ids);
      begin = end;
    }
    ASSERT_EQ(ids, row[2].get<std::vector<int32_t>>()) << line;
  }
  EXPECT_GE(rows, 2000u);
}

TEST(Splitter, LongTextsAreCutIntoPiecesFirst) {
  const SplitLimits pieces{.piece = 4, .same_run = 100};
  EXPECT_EQ(Split("abcdefghij", pieces), (Chunks{"abcd", "efgh", "ij"}));
  const SplitLimits runs{.piece = 100, .same_run = 3};
  EXPECT_EQ(Split("abcdefg", runs), (Chunks{"abc", "def", "g"}));
  // The cut counts U+001C as white space, the rules do not.
  EXPECT_EQ(Split("ab  \x1C  c", runs), (Chunks{"ab", " ", " \x1C", " ", " c"}));
  EXPECT_EQ(Split("ab cd ef", runs), (Chunks{"ab", " cd", " ef"}));
}

TEST(Splitter, TimeIsLinearInTheLengthOfTheText) {
  for (const std::string unit :
       {" ", "a", "A", "1", "!", "\n", "'", "Aa", " \n", "ー", "你", "\u0301"}) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += unit;
    const Result<CodePoints> points = DecodeUtf8(text);
    ASSERT_TRUE(points);
    const SplitLimits whole{.piece = text.size(), .same_run = text.size()};
    const std::clock_t start = std::clock();  // of this process: other load does not count
    const std::vector<size_t> ends = SplitText(points->values, whole);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_FALSE(ends.empty());
    EXPECT_EQ(ends.back(), points->values.size());
    EXPECT_LT(seconds, 10.0) << unit;  // quadratic time would be hours
  }
}

}  // namespace
}  // namespace mk
