#include "engine/tokenizer/rank_table.h"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <random>

#include "engine/tokenizer/base64.h"
#include "tests/unit/tokenizer/test_vocab.h"

namespace mk {
namespace {

using test::Base64;
using test::BytesAnd;
using test::RankFile;
using test::Table;

// Merging as it is defined, with nothing done to be fast.
std::vector<int32_t> NaiveMerge(const std::map<std::string, int32_t>& ranks,
                                const std::string& chunk) {
  if (const auto whole = ranks.find(chunk); whole != ranks.end()) return {whole->second};
  std::vector<std::string> parts;
  for (const char c : chunk) parts.emplace_back(1, c);
  for (;;) {
    size_t best = parts.size();
    int32_t best_rank = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto joined = ranks.find(parts[i] + parts[i + 1]);
      if (joined == ranks.end()) continue;
      if (best == parts.size() || joined->second < best_rank) {
        best = i;
        best_rank = joined->second;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(ranks.at(part));
  return ids;
}

std::vector<int32_t> Merge(const RankTable& table, const std::string& chunk) {
  std::vector<int32_t> ids;
  table.AppendChunk(chunk, ids);
  return ids;
}

TEST(RankTable, MergesLikeTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const size_t letters = 2 + random() % 3;
    const auto word = [&](size_t size) {
      std::string out;
      while (out.size() < size) out += static_cast<char>('a' + random() % letters);
      return out;
    };
    std::map<std::string, int32_t> ranks;
    std::vector<std::string> tokens = BytesAnd({});
    for (size_t n = random() % 40; n > 0; --n) {
      const std::string token = word(2 + random() % 6);
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    }
    std::shuffle(tokens.begin(), tokens.end(), random);
    for (size_t i = 0; i < tokens.size(); ++i) ranks[tokens[i]] = static_cast<int32_t>(i);
    const RankTable table = Table(tokens);
    for (int texts = 0; texts < 12; ++texts) {
      const std::string chunk = word(random() % 150);  // both sides of the short-chunk limit
      ASSERT_EQ(Merge(table, chunk),
                chunk.empty() ? std::vector<int32_t>() : NaiveMerge(ranks, chunk));
    }
  }
}

TEST(RankTable, AWholeChunkThatMergingCannotReachIsTaken) {
  const RankTable table = Table(BytesAnd({"ab", "abc", "xyzw"}));
  EXPECT_EQ(Merge(table, "xyzw"), (std::vector<int32_t>{258}));
  EXPECT_EQ(Merge(table, "xyzwa"), (std::vector<int32_t>{'x', 'y', 'z', 'w', 'a'}));
  EXPECT_EQ(Merge(table, "abcabc"), (std::vector<int32_t>{257, 257}));
}

TEST(RankTable, AMillionEqualBytesTakeLittleTime) {
  std::vector<std::string> more;
  for (size_t n = 2; n <= 4096; n *= 2) more.emplace_back(n, 'a');
  const RankTable table = Table(BytesAnd(more));
  const std::clock_t start = std::clock();  // of this process: other load does not count
  const std::vector<int32_t> ids = Merge(table, std::string((size_t{1} << 20) + 3, 'a'));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(ids.size(), 258u);  // 256 of the longest, then 2 + 1
  EXPECT_LT(seconds, 20.0);
}

TEST(RankTable, ReadsCarriageReturnsBlankLinesAndAnyOrder) {
  std::string text = "\r\n\n";
  const std::vector<std::string> tokens = BytesAnd({"ab"});
  for (size_t i = tokens.size(); i-- > 0;) {
    text += Base64(tokens[i]) + " " + std::to_string(i) + "\r\n";
  }
  const Result<RankTable> table = RankTable::Parse(text, "x", 257);
  ASSERT_TRUE(table) << table.error().ToString();
  EXPECT_EQ(table->Find("ab"), 256);
  EXPECT_EQ(table->Bytes(0), std::string(1, '\0'));
  EXPECT_EQ(table->Find("ba"), -1);
  EXPECT_EQ(table->longest(), 2u);
}

struct BadFile {
  const char* what;
  std::string text;
  ErrorCode code;
  const char* message;
};

TEST(RankTable, EveryCheckOfTheFileNamesItsLine) {
  const std::string good = RankFile(BytesAnd({"ab"}));
  const std::string bytes_only = RankFile(BytesAnd({}));
  std::string no_zero_byte = RankFile(BytesAnd({}));
  no_zero_byte.replace(0, no_zero_byte.find('\n'), "YWFh 0");
  const BadFile cases[] = {
      {"no rank", bytes_only + "YWI=\n", ErrorCode::kCorrupt, "line 257"},
      {"foreign character", bytes_only + "YW*= 256\n", ErrorCode::kCorrupt, "bad base64"},
      {"no padding", bytes_only + "YWI 256\n", ErrorCode::kCorrupt, "bad base64"},
      {"loose bits", bytes_only + "YWJ= 256\n", ErrorCode::kCorrupt, "bad base64"},
      {"empty token", bytes_only + " 256\n", ErrorCode::kCorrupt, "empty token"},
      {"negative rank", bytes_only + "YWI= -1\n", ErrorCode::kCorrupt, "bad rank"},
      {"word as rank", bytes_only + "YWI= x\n", ErrorCode::kCorrupt, "bad rank"},
      {"text after the rank", bytes_only + "YWI= 256 7\n", ErrorCode::kCorrupt, "bad rank"},
      {"huge rank", bytes_only + "YWI= 1048576\n", ErrorCode::kCorrupt, "too large"},
      {"rank twice", good + "YWM= 256\n", ErrorCode::kCorrupt, "rank 256 appears twice"},
      {"gap", bytes_only + "YWI= 257\n", ErrorCode::kCorrupt, "rank 256 is missing"},
      {"same bytes", good + "YWI= 257\n", ErrorCode::kCorrupt, "have the same bytes"},
      {"long token", bytes_only + Base64(std::string(4097, 'a')) + " 256\n", ErrorCode::kCorrupt,
       "4097"},
      {"missing byte", no_zero_byte, ErrorCode::kCorrupt, "single byte 0"},
      {"empty file", "", ErrorCode::kCorrupt, "single byte 0"},
  };
  for (const BadFile& c : cases) {
    const Result<RankTable> table = RankTable::Parse(c.text, "ranks.tiktoken");
    ASSERT_FALSE(table) << c.what;
    EXPECT_EQ(table.error().code, c.code) << c.what;
    EXPECT_NE(table.error().message.find(c.message), std::string::npos)
        << c.what << ": " << table.error().message;
    EXPECT_NE(table.error().message.find("ranks.tiktoken"), std::string::npos) << c.what;
  }
  const Result<RankTable> size = RankTable::Parse(good, "ranks.tiktoken", 163584);
  ASSERT_FALSE(size);
  EXPECT_EQ(size.error().code, ErrorCode::kIncompatible);
}

TEST(Base64, RoundTripsAndRefusesWhatIsNotCanonical) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 40; ++size) {
    std::string bytes;
    while (bytes.size() < size) bytes += static_cast<char>(random());
    EXPECT_EQ(DecodeBase64(Base64(bytes)), bytes);
  }
  for (const char* bad :
       {"A", "AA", "AAA", "A===", "====", "AB==", "AA=A", "=AAA", "AAAA=", "A\nAA"}) {
    EXPECT_FALSE(DecodeBase64(bad)) << bad;
  }
}

}  // namespace
}  // namespace mk
