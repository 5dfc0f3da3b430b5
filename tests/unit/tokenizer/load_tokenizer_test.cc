#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer.h"
#include "tests/unit/tokenizer/test_vocab.h"

namespace mk {
namespace {

using nlohmann::json;
using test::BytesAnd;
using test::RankFile;
using test::TempFolder;

json VocabOf(size_t tokens) {
  json table = json::array();
  for (size_t i = 0; i < tokens; ++i) table.push_back(i);
  json specials;
  size_t next = tokens;
  for (const char* name : {"bos", "eos", "open", "close", "sep", "end_of_msg", "unk", "pad"}) {
    specials[name] = next++;
  }
  return {{"nano_to_kimi", table}, {"specials", specials}, {"vocab_size", tokens + 8}};
}

// Of the rank file of BytesAnd({"ab", "abc"}), by sha256sum.
constexpr char kRanksSha256[] = "2ced25bdaccc53936bfe64fb3497d882d7f9985f9254319c9a5db06c4d7db0f1";

json OwnVocab(const std::string& base_name, const std::string& base) {
  json vocab = VocabOf(static_cast<size_t>(std::count(base.begin(), base.end(), '\n')));
  vocab["format"] = "microkimi-vocab-own-1";
  vocab["base"] = base_name;
  vocab["base_sha256"] = kRanksSha256;
  return vocab;
}

class LoadTokenizerTest : public ::testing::Test {
 protected:
  TokenizerSources Sources(size_t vocab) const {
    TokenizerSources sources;
    sources.model_path = folder_.Path("story.bin");
    sources.model_vocab = vocab;
    return sources;
  }

  TempFolder folder_;
  const std::string ranks_ = RankFile(BytesAnd({"ab", "abc"}));
};

TEST_F(LoadTokenizerTest, FindsTheVocabularyOfTheModelAndItsBase) {
  folder_.Write("own.tiktoken", ranks_);
  folder_.Write("story.vocab.json", OwnVocab("own.tiktoken", ranks_).dump());
  const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(266));
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_EQ(loaded->tokenizer->kind(), "k3-own");
  EXPECT_EQ(loaded->vocab_path, folder_.Path("story.vocab.json"));
  EXPECT_EQ(loaded->rank_path, folder_.Path("own.tiktoken"));
  EXPECT_TRUE(loaded->warnings.empty());
  EXPECT_EQ(loaded->tokenizer->EncodeText("abc")->ids, (std::vector<int32_t>{257}));
}

TEST_F(LoadTokenizerTest, FindsVocabJsonAndTheUsualRankFiles) {
  folder_.Write("vocab.json", VocabOf(258).dump());
  for (const char* name : {"tiktoken.model", "base.tiktoken", "story.tiktoken"}) {
    folder_.Write(name, ranks_);
    const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(266));
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    EXPECT_EQ(loaded->tokenizer->kind(), "k3-remap");
    EXPECT_EQ(loaded->rank_path, folder_.Path(name));  // each name goes before the one before it
  }
}

TEST_F(LoadTokenizerTest, AVocabularyOfAnotherSizeIsAnErrorOnlyWhenNamed) {
  folder_.Write("base.tiktoken", ranks_);
  const std::string path = folder_.Write("story.vocab.json", VocabOf(258).dump());
  TokenizerSources sources = Sources(300);
  sources.config_label = "bytes";
  const Result<LoadedTokenizer> found = LoadTokenizer(sources);
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->tokenizer->kind(), "bytes");
  ASSERT_EQ(found->warnings.size(), 1u);
  EXPECT_NE(found->warnings[0].find(path), std::string::npos);
  sources.vocab_path = path;
  const Result<LoadedTokenizer> named = LoadTokenizer(sources);
  ASSERT_FALSE(named);
  EXPECT_EQ(named.error().code, ErrorCode::kIncompatible);
}

TEST_F(LoadTokenizerTest, AMatchingFileWinsOverBytes) {
  folder_.Write("base.tiktoken", ranks_);
  folder_.Write("story.vocab.json", "{\"some\": \"other file\"}");
  folder_.Write("vocab.json", VocabOf(258).dump());
  TokenizerSources sources = Sources(266);
  sources.config_label = "bytes";
  const Result<LoadedTokenizer> loaded = LoadTokenizer(sources);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->tokenizer->kind(), "k3-remap");
  EXPECT_EQ(loaded->warnings.size(), 1u);
}

TEST_F(LoadTokenizerTest, NothingFoundSaysHowToMendIt) {
  const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(8200));
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kNotFound);
  EXPECT_NE(loaded.error().message.find("story.bin"), std::string::npos);
  EXPECT_NE(loaded.error().hint.find("--vocab"), std::string::npos);
  EXPECT_NE(loaded.error().hint.find("--ids"), std::string::npos);
}

TEST_F(LoadTokenizerTest, AVocabularyWithoutRankFileIsAnError) {
  folder_.Write("story.vocab.json", VocabOf(258).dump());
  const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(266));
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kNotFound);
}

TEST_F(LoadTokenizerTest, AChangedBaseIsNoticed) {
  folder_.Write("story.vocab.json", OwnVocab("own.tiktoken", ranks_).dump());
  folder_.Write("own.tiktoken", RankFile(BytesAnd({"ab", "abd"})));
  const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(266));
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kIncompatible);
  EXPECT_NE(loaded.error().message.find("SHA-256"), std::string::npos);
}

TEST_F(LoadTokenizerTest, NamedFilesNeedNoModelBesideThem) {
  const TempFolder elsewhere;
  TokenizerSources sources = Sources(266);
  sources.vocab_path = elsewhere.Write("v.vocab.json", VocabOf(258).dump());
  EXPECT_FALSE(LoadTokenizer(sources));
  elsewhere.Write("v.tiktoken", ranks_);
  const Result<LoadedTokenizer> beside = LoadTokenizer(sources);
  ASSERT_TRUE(beside) << beside.error().ToString();
  sources.rank_path = folder_.Write("named.tiktoken", ranks_);
  const Result<LoadedTokenizer> named = LoadTokenizer(sources);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->rank_path, sources.rank_path);
  sources.rank_path = folder_.Path("absent");
  EXPECT_EQ(LoadTokenizer(sources).error().code, ErrorCode::kNotFound);
  sources.vocab_path = folder_.Path("absent.json");
  EXPECT_EQ(LoadTokenizer(sources).error().code, ErrorCode::kNotFound);
}

TEST_F(LoadTokenizerTest, TheFullVocabularyNeedsAllItsRanks) {
  std::vector<std::string> more;
  for (int i = 0; more.size() < 163584 - 256; ++i) more.push_back("token" + std::to_string(i));
  folder_.Write("tiktoken.model", RankFile(BytesAnd(more)));
  const Result<LoadedTokenizer> full = LoadTokenizer(Sources(163840));
  ASSERT_TRUE(full) << full.error().ToString();
  EXPECT_EQ(full->tokenizer->kind(), "k3");
  EXPECT_EQ(full->tokenizer->EncodeText("token7")->ids,
            (std::vector<int32_t>{'t', 'o', 'k', 'e', 'n', '7'}));

  folder_.Write("tiktoken.model", ranks_);
  EXPECT_EQ(LoadTokenizer(Sources(163840)).error().code, ErrorCode::kNotFound);
  TokenizerSources bytes = Sources(163840);
  bytes.config_label = "bytes";
  const Result<LoadedTokenizer> fallback = LoadTokenizer(bytes);
  ASSERT_TRUE(fallback);
  EXPECT_EQ(fallback->tokenizer->kind(), "bytes");
  EXPECT_EQ(fallback->warnings.size(), 1u);

  TokenizerSources named = Sources(163840);
  named.rank_path = folder_.Path("tiktoken.model");
  EXPECT_EQ(LoadTokenizer(named).error().code, ErrorCode::kIncompatible);
  named.model_vocab = 8200;  // a rank file alone is the full vocabulary
  EXPECT_EQ(LoadTokenizer(named).error().code, ErrorCode::kIncompatible);
}

}  // namespace
}  // namespace mk
