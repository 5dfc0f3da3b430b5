#include "engine/tokenizer/dsv4_vocabulary.h"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "engine/tokenizer/dsv4_splitter.h"
#include "engine/tokenizer/unicode.h"
#include "tests/unit/tokenizer/dsv4_vocab.h"

namespace mk {
namespace {

using Ids = std::vector<int32_t>;
using Marks = Dsv4Vocabulary::Marks;
using nlohmann::json;

int32_t ByteId(char c) {
  return 3 + static_cast<uint8_t>(c);
}

Ids Encode(const Dsv4Vocabulary& vocabulary, std::string_view text, Marks marks = Marks::kAsText) {
  const Result<Ids> ids = vocabulary.Encode(text, marks);
  EXPECT_TRUE(ids) << ids.error().ToString();
  return ids.value_or(Ids());
}

double SecondsOf(const std::function<void()>& work) {
  const std::clock_t start = std::clock();  // of this process: other load does not count
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Pieces made by a regex engine from the published patterns.
TEST(Dsv4Splitter, CutsKnownTexts) {
  const json rows = json::parse(test::ReadFile(MK_TEST_DATA "/tokenizer/dsv4_pieces.json"));
  ASSERT_EQ(rows.size(), 40u);
  for (const json& row : rows) {
    const auto text = row[0].get<std::string>();
    const Result<CodePoints> points = DecodeUtf8(text);
    ASSERT_TRUE(points);
    std::vector<std::string> pieces;
    size_t begin = 0;
    for (const size_t end : SplitDsv4Text(points->values)) {
      pieces.push_back(
          text.substr(points->offsets[begin], points->offsets[end] - points->offsets[begin]));
      begin = end;
    }
    EXPECT_EQ(json(pieces), row[1]) << row[0];
  }
}

TEST(Dsv4Splitter, TimeIsLinearInTheLengthOfTheText) {
  for (const std::string unit :
       {" ", "a", "1", "!", "\n", "Aa", " \n", " a", " !", "テ", "\u0301", "\u200b", "\n ", "!a"}) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += unit;
    const Result<CodePoints> points = DecodeUtf8(text);
    ASSERT_TRUE(points);
    std::vector<size_t> ends;
    EXPECT_LT(SecondsOf([&] { ends = SplitDsv4Text(points->values); }), 10.0) << unit;
    ASSERT_FALSE(ends.empty());
    EXPECT_EQ(ends.back(), points->values.size());
  }
}

TEST(PairMerges, JoinsTokensNotBytes) {
  // (b, c) comes first; then a stands before bc, and (a, bc) is no merge.
  const auto vocabulary =
      test::VocabularyOf(test::TokenizerJsonOf({{"b", "c"}, {"a", "b"}, {"ab", "c"}}));
  EXPECT_EQ(Encode(vocabulary, "abc"), (Ids{ByteId('a'), test::kFirstMerged}));
  EXPECT_EQ(Encode(vocabulary, "ab"), (Ids{test::kFirstMerged + 1}));
}

TEST(PairMerges, TheLeftmostOfEqualPairsGoesFirst) {
  const auto vocabulary = test::VocabularyOf(test::TokenizerJsonOf({{"a", "a"}}));
  const int aa = test::kFirstMerged;
  EXPECT_EQ(Encode(vocabulary, "aaaa"), (Ids{aa, aa}));
  EXPECT_EQ(Encode(vocabulary, "aaa"), (Ids{aa, ByteId('a')}));
  // Long pieces take another way to the same ids.
  Ids want(101, aa);
  want.push_back(ByteId('a'));
  EXPECT_EQ(Encode(vocabulary, std::string(203, 'a')), want);
}

TEST(PairMerges, LongPiecesMergeAsShortOnesDo) {
  // Merges that leave stale candidates behind: what they join overlaps on both sides.
  const auto file = test::TokenizerJsonOf({{"a", "b"},
                                           {"b", "a"},
                                           {"ab", "a"},
                                           {"ab", "ab"},
                                           {"b", "b"},
                                           {"aba", "b"},
                                           {"a", "a"},
                                           {"bb", "a"},
                                           {"abab", "ab"},
                                           {"aa", "b"},
                                           {"ba", "ba"}});
  const auto vocabulary = test::VocabularyOf(file);
  const auto& merges = file["model"]["merges"];
  uint32_t random = 1;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> parts;
    std::string text;
    for (size_t n = 60 + static_cast<size_t>(round) % 40; n > 0; --n) {
      random = random * 1664525 + 1013904223;
      parts.emplace_back((random >> 24) % 2 ? "a" : "b");
      text += parts.back();
    }
    // The rule, word for word: the pair of lowest rank, the leftmost of equals.
    for (bool joined = true; joined;) {
      joined = false;
      for (const auto& merge : merges) {
        for (size_t i = 0; i + 1 < parts.size() && !joined; ++i) {
          if (parts[i] + " " + parts[i + 1] != merge) continue;
          parts[i] += parts[i + 1];
          parts.erase(parts.begin() + static_cast<ptrdiff_t>(i) + 1);
          joined = true;
        }
        if (joined) break;
      }
    }
    Ids want;
    for (const std::string& part : parts) want.push_back(file["model"]["vocab"][part]);
    ASSERT_EQ(Encode(vocabulary, text), want) << text;
  }
}

TEST(PairMerges, ALongRunOfOneLetterTakesNoTime) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::string run = "a"; run.size() < 1024; run += run) merges.emplace_back(run, run);
  const auto vocabulary = test::VocabularyOf(test::TokenizerJsonOf(merges));
  const std::string text(100'000, 'a');
  Ids ids;
  EXPECT_LT(SecondsOf([&] { ids = Encode(vocabulary, text); }), 1.0);  // quadratic: minutes
  EXPECT_EQ(ids.size(), 100'000u / 1024 + 3);  // 97 runs of 1024, then 512 + 128 + 32
}

TEST(Dsv4Vocabulary, MarksInTextAreTextUnlessAskedFor) {
  auto file = test::TokenizerJsonOf({}, {"<think>", "</think>", "[MASK]", "[MASK][MASK]x", "<t"});
  const auto vocabulary = test::VocabularyOf(file);
  const int think = test::kFirstMerged;
  const std::string text = "a<think>b</think>";
  const Ids plain = Encode(vocabulary, text);
  EXPECT_EQ(plain.size(), text.size());
  for (const int32_t id : plain) EXPECT_LT(id, think);
  EXPECT_EQ(Encode(vocabulary, text, Marks::kAsIds),
            (Ids{ByteId('a'), think, ByteId('b'), think + 1}));
  // The longest of those that start at one place, and no others.
  EXPECT_EQ(Encode(vocabulary, "[MASK][MASK]x", Marks::kAsIds), (Ids{think + 3}));
  EXPECT_EQ(Encode(vocabulary, "[MASK][MASK][MASK]x", Marks::kAsIds), (Ids{think + 2, think + 3}));
  EXPECT_EQ(Encode(vocabulary, "<tx", Marks::kAsIds), (Ids{think + 4, ByteId('x')}));
  EXPECT_FALSE(vocabulary.Encode("\xC3", Marks::kAsIds));
  EXPECT_FALSE(vocabulary.Encode("\xC3", Marks::kAsText));
}

TEST(Dsv4Vocabulary, WholePiecesNeverBecomeMarks) {
  auto file = test::TokenizerJsonOf({{"q", "r"}}, {"think"});
  file["model"]["ignore_merges"] = true;
  file["model"]["vocab"]["think"] = test::kFirstMerged + 1;  // also the added token
  file["model"]["vocab"]["xyz"] = test::kFirstMerged + 2;
  const auto vocabulary = test::VocabularyOf(file);
  EXPECT_EQ(Encode(vocabulary, "think").size(), 5u);
  EXPECT_EQ(Encode(vocabulary, "xyz"), (Ids{test::kFirstMerged + 2}));
  EXPECT_EQ(Encode(vocabulary, "xyzz").size(), 4u);
}

}  // namespace
}  // namespace mk
