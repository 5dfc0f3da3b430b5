// Files of DeepSeek-V4 tokenizers: finding them, remaps, chat assets, recorded ids.

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "engine/tokenizer/dsv4_chat_assets.h"
#include "engine/tokenizer/dsv4_remap.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8_stream.h"
#include "tests/unit/tokenizer/dsv4_vocab.h"

namespace mk {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;
using test::TempFolder;

constexpr size_t kWhole = 264;  // ids of Whole()

json Whole() {
  return test::TokenizerJsonOf({{"a", "b"}});
}

// Keeps "b", "ab" and "a" as 0, 1, 2.
json Remap() {
  return {{"nano_to_ds", {3 + 'b', test::kFirstMerged, 3 + 'a'}},
          {"vocab_size", 8},
          {"specials", {{"bos", 3}, {"eos", 4}, {"unk", 5}, {"pad", 6}}}};
}

class Dsv4Files : public ::testing::Test {
 protected:
  TokenizerSources Sources(size_t vocab) const {
    TokenizerSources sources;
    sources.model_path = folder_.Path("story.bin");
    sources.model_vocab = vocab;
    return sources;
  }
  static std::string KindOf(const TokenizerSources& sources) {
    const Result<LoadedTokenizer> loaded = LoadTokenizer(sources);
    return loaded ? std::string(loaded->tokenizer->kind()) : loaded.error().message;
  }

  TempFolder folder_;
};

TEST_F(Dsv4Files, ATokenizerJsonBesideTheModelIsItsVocabulary) {
  for (const char* name :
       {"microdeepseek.tokenizer.json", "tokenizer.json", "story.tokenizer.json"}) {
    folder_.Write(name, Whole().dump());
    const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(kWhole));
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    EXPECT_EQ(loaded->tokenizer->kind(), "dsv4");
    EXPECT_EQ(loaded->rank_path, folder_.Path(name));  // each name goes before the one before it
    EXPECT_EQ(loaded->tokenizer->vocab_size(), kWhole);
    EXPECT_EQ(loaded->tokenizer->EncodePrompt("ab")->ids, (Ids{0, test::kFirstMerged}));
  }
}

TEST_F(Dsv4Files, ATokenizerJsonMayBeNamedEitherWay) {
  const TempFolder elsewhere;
  const std::string path = elsewhere.Write("t.json", Whole().dump());
  TokenizerSources vocab = Sources(kWhole);
  vocab.vocab_path = path;
  EXPECT_EQ(KindOf(vocab), "dsv4");
  TokenizerSources ranks = Sources(kWhole);
  ranks.rank_path = path;
  EXPECT_EQ(KindOf(ranks), "dsv4");
  vocab.model_vocab = ranks.model_vocab = 300;
  EXPECT_NE(KindOf(vocab).find("264 ids, the model has 300"), std::string::npos);
  EXPECT_NE(KindOf(ranks).find("264 ids, the model has 300"), std::string::npos);
}

TEST_F(Dsv4Files, AFileOfAnotherModelIsLeftAside) {
  folder_.Write("tokenizer.json", Whole().dump());
  TokenizerSources sources = Sources(300);
  sources.config_label = "bytes";
  const Result<LoadedTokenizer> loaded = LoadTokenizer(sources);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->tokenizer->kind(), "bytes");
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_NE(loaded->warnings[0].find("tokenizer.json"), std::string::npos);
  sources.config_label.clear();
  EXPECT_NE(KindOf(sources).find("264 ids"), std::string::npos);
}

TEST_F(Dsv4Files, AFileOfAnotherKindIsRefused) {
  json file = Whole();
  file["added_tokens"].erase(1);  // the mark of the end
  folder_.Write("tokenizer.json", file.dump());
  EXPECT_NE(KindOf(Sources(kWhole)).find("<｜end▁of▁sentence｜>"), std::string::npos);
}

TEST_F(Dsv4Files, ARemapUsesTheTokenizerJsonBesideIt) {
  for (const char* name : {"vocab_ds_nano.json", "vocab.json", "story.vocab.json"}) {
    folder_.Write(name, Remap().dump());
    EXPECT_NE(KindOf(Sources(8)).find("no tokenizer.json"), std::string::npos);
    folder_.Write("tokenizer.json", Whole().dump());
    const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(8));
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    EXPECT_EQ(loaded->vocab_path, folder_.Path(name));
    EXPECT_EQ(loaded->rank_path, folder_.Path("tokenizer.json"));
    std::filesystem::remove(folder_.Path("tokenizer.json"));
    const Tokenizer& tokenizer = *loaded->tokenizer;
    EXPECT_EQ(tokenizer.kind(), "dsv4-remap");
    EXPECT_EQ(tokenizer.vocab_size(), 8u);
    EXPECT_EQ(tokenizer.EncodePrompt("abba")->ids, (Ids{3, 1, 0, 2}));
    const Result<EncodedText> unknown = tokenizer.EncodeText("axb");
    EXPECT_EQ(unknown->ids, (Ids{2, 5, 0}));
    EXPECT_EQ(unknown->unknown, 1u);
    EXPECT_EQ(tokenizer.Decode(Ids{3, 1, 0, 5, 7, 4}), "abb");
    EXPECT_EQ(tokenizer.TokenName(5), "<unk>");
    EXPECT_EQ(tokenizer.TokenName(7), "<|7|>");
    EXPECT_EQ(tokenizer.default_dialect(), std::nullopt);
    const std::vector<ChatMessage> ask = {{ChatRole::kUser, "ab", {}, {}}};
    EXPECT_FALSE(tokenizer.RenderChat(ask, {}));
    EXPECT_EQ(RenderContinuousText(tokenizer, ask)->ids, (Ids{3, 1}));
    EXPECT_EQ(Ids(tokenizer.prompt_stop_ids().begin(), tokenizer.prompt_stop_ids().end()),
              (Ids{4}));
  }
  // Its ids must be in the file.
  json far = Remap();
  far["nano_to_ds"][1] = 300;
  folder_.Write("story.vocab.json", far.dump());
  folder_.Write("tokenizer.json", Whole().dump());
  EXPECT_NE(KindOf(Sources(8)).find("token 300"), std::string::npos);
}

TEST_F(Dsv4Files, AFullVocabularyIsTriedWhenTheRemapDoesNotFit) {
  folder_.Write("vocab_ds_nano.json", Remap().dump());
  folder_.Write("tokenizer.json", Whole().dump());
  const Result<LoadedTokenizer> loaded = LoadTokenizer(Sources(kWhole));
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->tokenizer->kind(), "dsv4");
  EXPECT_EQ(loaded->warnings.size(), 1u);
}

TEST_F(Dsv4Files, ChatAssetsLieBesideTheTokenizerJson) {
  folder_.Write("story.tokenizer.json", Whole().dump());
  const auto dialect = [&] { return LoadTokenizer(Sources(kWhole))->tokenizer->default_dialect(); };
  folder_.Write("chat.json", R"({"chat_dialect": "none"})");  // of "tokenizer.json"
  EXPECT_EQ(dialect(), ChatDialect::kDsv4);
  folder_.Write("story.chat.json", R"({"chat_dialect": "none"})");
  EXPECT_EQ(dialect(), std::nullopt);
  folder_.Write("story.chat.json", "{");
  EXPECT_NE(KindOf(Sources(kWhole)).find("story.chat.json"), std::string::npos);
}

TEST(Dsv4ChatAssetsFile, ReadsEffortsAndRefusesWrongTypes) {
  const auto good = ParseDsv4ChatAssets(R"({"effort": {"low": "", "max": "Think."}, "x": 1})", "a");
  ASSERT_TRUE(good);
  EXPECT_TRUE(good->can_chat);
  EXPECT_EQ(good->effort.at("max"), "Think.");
  for (const char* bad :
       {"[]", "1", R"({"chat_dialect": "k3"})", R"({"chat_dialect": 1})", R"({"effort": []})",
        R"({"effort": {"low": 1}})", R"({"effort": {"": "x"}})"}) {
    const auto refused = ParseDsv4ChatAssets(bad, "some.chat.json");
    ASSERT_FALSE(refused) << bad;
    EXPECT_NE(refused.error().message.find("some.chat.json"), std::string::npos);
  }
}

TEST(Dsv4RemapFile, RefusesDamagedFilesByEntry) {
  ASSERT_TRUE(ParseDsv4Remap(Remap().dump(), "r"));
  const std::vector<std::tuple<const char*, json, const char*>> refusals = {
      {"/nano_to_ds", 3, "nano_to_ds"},
      {"/nano_to_ds", json::array(), "nano_to_ds"},
      {"/nano_to_ds/1", "a", "nano_to_ds[1]"},
      {"/nano_to_ds/1", -1, "nano_to_ds[1]"},
      {"/nano_to_ds/1", 1 << 20, "nano_to_ds[1]"},
      {"/nano_to_ds/1", 3 + 'b', "nano_to_ds[1] repeats"},
      {"/vocab_size", 2, "vocab_size"},
      {"/vocab_size", "8", "vocab_size"},
      {"/vocab_size", uint64_t{1} << 40, "vocab_size"},
      {"/specials", 1, "specials"},
      {"/specials/bos", 2, "specials.bos"},
      {"/specials/bos", 8, "specials.bos"},
      {"/specials/eos", 3, "specials.eos repeats"},
      {"/specials/pad", 5, "specials.pad repeats"},
      {"/specials/unk", nullptr, "specials.unk"},
  };
  for (const auto& [where, value, message] : refusals) {
    json file = Remap();
    file[json::json_pointer(where)] = value;
    const auto refused = ParseDsv4Remap(file.dump(), "r");
    ASSERT_FALSE(refused) << where;
    EXPECT_NE(refused.error().message.find(message), std::string::npos) << refused.error().message;
  }
  for (const char* key : {"nano_to_ds", "vocab_size", "specials"}) {
    json file = Remap();
    file.erase(key);
    EXPECT_FALSE(ParseDsv4Remap(file.dump(), "r")) << key;
  }
}

// Recorded ids of 73 texts. The recording program takes marks in text as ids, ours does not: these
// rows differ.
TEST(Dsv4Goldens, TextGivesTheRecordedIds) {
  TokenizerSources sources;
  sources.vocab_path = MK_TEST_DATA "/golden/tok/dsv4_tiny.vocab.json";
  sources.model_vocab = 264;
  const Result<LoadedTokenizer> loaded = LoadTokenizer(sources);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_EQ(loaded->tokenizer->kind(), "dsv4-remap");
  const std::set<std::string> with_marks = {"</think>", "<｜User｜>hi"};
  size_t equal = 0;
  for (const json& row : json::parse(test::ReadFile(MK_TEST_DATA "/golden/tok/tokens.json"))) {
    const auto text = row["text"].get<std::string>();
    const auto want = row["dsv4_tiny"]["raw"].get<Ids>();
    const Result<EncodedText> ids = loaded->tokenizer->EncodePrompt(text);
    ASSERT_TRUE(ids);
    if (with_marks.contains(text)) {
      EXPECT_NE(ids->ids, want) << text;
    } else {
      EXPECT_EQ(ids->ids, want) << text;
      ++equal;
    }
  }
  EXPECT_EQ(equal, 71u);
}

TEST(Dsv4Goldens, TextComesBackWholeAndInPieces) {
  TokenizerSources sources;
  sources.vocab_path = MK_TEST_DATA "/tokenizer/dsv4.tokenizer.json";
  sources.model_vocab = 1609;
  const Result<LoadedTokenizer> loaded = LoadTokenizer(sources);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  std::ifstream file(MK_TEST_DATA "/tokenizer/split_fuzz.jsonl");
  size_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const auto text = json::parse(line)[0].get<std::string>();
    const Result<EncodedText> encoded = loaded->tokenizer->EncodeText(text);
    ASSERT_TRUE(encoded);
    EXPECT_EQ(loaded->tokenizer->Decode(encoded->ids), text);
    Utf8Stream stream;
    std::string streamed;
    for (const int32_t id : encoded->ids)
      streamed += stream.Push(loaded->tokenizer->TokenBytes(id));
    EXPECT_EQ(streamed + stream.Break(), text);
  }
  EXPECT_GE(rows, 2000u);
}

}  // namespace
}  // namespace mk
