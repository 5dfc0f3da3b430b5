// Recorded ids of 73 texts on two remapped vocabularies, in three forms each.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/tokenizer/tokenizer.h"
#include "tests/unit/tokenizer/test_vocab.h"

namespace mk {
namespace {

using Ids = std::vector<int32_t>;

class TokenGoldens : public ::testing::TestWithParam<const char*> {
 protected:
  static std::shared_ptr<const Tokenizer> Load(const std::string& name, size_t vocab) {
    const std::string stem = std::string(MK_TEST_DATA "/golden/tok/") + name;
    TokenizerSources sources;
    sources.vocab_path = stem + ".vocab.json";
    sources.rank_path = stem + ".base.tiktoken";
    sources.model_vocab = vocab;
    Result<LoadedTokenizer> loaded = LoadTokenizer(sources);
    EXPECT_TRUE(loaded) << loaded.error().ToString();
    return loaded->tokenizer;
  }
};

TEST_P(TokenGoldens, TextAndChatGiveTheRecordedIds) {
  const std::string name = GetParam();
  const auto tokenizer = Load(name, name == "k3_tiny" ? 256 : 8200);
  const auto rows = nlohmann::json::parse(test::ReadFile(MK_TEST_DATA "/golden/tok/tokens.json"));
  ASSERT_EQ(rows.size(), 73u);
  for (const auto& row : rows) {
    const auto text = row["text"].get<std::string>();
    const auto& want = row[name];
    const Result<EncodedText> raw = tokenizer->EncodePrompt(text);
    ASSERT_TRUE(raw);
    EXPECT_EQ(raw->ids, want["raw"].get<Ids>()) << text;
    // The recordings write finished turns in the k3 dialect, with an empty think channel.
    const ChatOptions k3{.dialect = ChatDialect::kK3, .thinking = true, .generation_prompt = true};
    const std::vector<ChatMessage> one = {{ChatRole::kUser, text, "", ""}};
    const Result<EncodedText> chat = tokenizer->RenderChat(one, k3);
    ASSERT_TRUE(chat);
    EXPECT_EQ(chat->ids, want["chat"].get<Ids>()) << text;
    const std::vector<ChatMessage> two = {{ChatRole::kUser, "first", "", ""},
                                          {ChatRole::kAssistant, text, "", ""},
                                          {ChatRole::kUser, text, "", ""}};
    const Result<EncodedText> chat2 = tokenizer->RenderChat(two, k3);
    ASSERT_TRUE(chat2);
    EXPECT_EQ(chat2->ids, want["chat2"].get<Ids>()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenGoldens, ::testing::Values("k3_tiny", "k3_nano"));

}  // namespace
}  // namespace mk
