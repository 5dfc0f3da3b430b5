#include "eval/text_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace mk::eval {
namespace {

std::string ErrorOf(const std::string& path, std::string_view bytes) {
  const auto file = ParseTextFile(path, bytes);
  return file ? "" : file.error().message;
}

TEST(TextFile, OfLinesHasADocumentPerLine) {
  const auto file = ParseTextFile(
      "/t/two.jsonl", "{\"text\": \"one\"}\n\n{\"id\": \"b\", \"text\": \"zwei ä\"}\r\n");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->name, "two");
  ASSERT_EQ(file->documents.size(), 2U);
  EXPECT_EQ(file->documents[0].id, "line 1");
  EXPECT_EQ(file->documents[1].id, "b");
  EXPECT_EQ(file->documents[1].text, "zwei ä");
  EXPECT_EQ(file->bytes, 3 + 7U);
}

TEST(TextFile, NamesTheLineThatIsWrong) {
  EXPECT_EQ(ErrorOf("/t.jsonl", "{\"text\": \"a\"}\n[1]\n"), "/t.jsonl:2: not a JSON object");
  EXPECT_EQ(ErrorOf("/t.jsonl", "\n{\"txt\": \"a\"}"), "/t.jsonl:2: unknown field \"txt\"");
  EXPECT_EQ(ErrorOf("/t.jsonl", "{\"text\": 1}"), "/t.jsonl:1: text is no string");
  EXPECT_EQ(ErrorOf("/t.jsonl", "{\"text\": \"\"}"), "/t.jsonl:1: there is no text");
  EXPECT_EQ(ErrorOf("/t.jsonl", "{\"id\": \"x\"}"), "/t.jsonl:1: there is no text");
  EXPECT_EQ(ErrorOf("/t.jsonl", "{\"text\": \"a\""), "/t.jsonl:1: not a JSON object");
  EXPECT_EQ(ErrorOf("/t.jsonl", " \n"), "/t.jsonl is empty");
  EXPECT_EQ(ErrorOf("/t.txt", ""), "/t.txt is empty");
  EXPECT_EQ(ErrorOf("/t.txt", "\xff"), "/t.txt is not UTF-8");
}

TEST(TextFile, OfPlainTextIsCutAtBlankLinesAndNothingIsLost) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += std::string(static_cast<size_t>(100 + 37 * i), 'a' + static_cast<char>(i % 26));
    text += i % 3 == 0 ? "\n\n" : i % 3 == 1 ? "\n \t\n\n  " : "\n";
  }
  const auto file = ParseTextFile("/t.txt", text);
  ASSERT_TRUE(file);
  EXPECT_GT(file->documents.size(), 5U);
  std::string joined;
  for (const Document& document : file->documents) {
    EXPECT_EQ(document.id, "byte " + std::to_string(joined.size()));
    EXPECT_GE(document.text.size(), kDocumentBytes / 2);
    if (!joined.empty()) {
      EXPECT_EQ(joined.back(), '\n');
      // A blank line is before the cut.
      EXPECT_EQ(
          joined.substr(0, joined.size() - 1).find_last_not_of(" \t\n") + 1 < joined.size() - 1,
          true);
    }
    joined += document.text;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(ParseTextFile("/t.txt", "short")->documents.size(), 1U);
  EXPECT_EQ(ParseTextFile("/t.txt", std::string(10'000, 'x'))->documents.size(), 1U);
}

TEST(TextFile, TheBundledOneIsSound) {
  const std::string path = std::string(MK_SOURCE_DIR) + "/eval/data/fables.jsonl";
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const auto file = ParseTextFile(path, bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_GE(file->documents.size(), 20U);
  EXPECT_GE(file->bytes, 12'000U);
}

}  // namespace
}  // namespace mk::eval
