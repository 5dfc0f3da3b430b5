#include "engine/tokenizer/vocab_json.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace mk {
namespace {

using Json = nlohmann::json;

Json Remap() {
  return {{"nano_to_kimi", {10, 20, 30, 5}},
          {"vocab_size", 12},
          {"specials",
           {{"bos", 4},
            {"eos", 5},
            {"open", 6},
            {"close", 7},
            {"sep", 8},
            {"end_of_msg", 9},
            {"unk", 10},
            {"pad", 11}}}};
}

Json Own() {
  Json json = Remap();
  json["format"] = "microkimi-vocab-own-1";
  json["nano_to_kimi"] = {0, 1, 2, 3};
  json["base"] = "story.tiktoken";
  json["base_sha256"] = std::string(64, 'a');
  return json;
}

TEST(VocabJson, ReadsARemap) {
  const Result<VocabJson> vocab = ParseVocabJson(Remap().dump(), "v.json");
  ASSERT_TRUE(vocab) << vocab.error().ToString();
  EXPECT_EQ(vocab->format, VocabFormat::kLegacyRemap);
  EXPECT_EQ(vocab->full_ids, (std::vector<int32_t>{10, 20, 30, 5}));
  EXPECT_EQ(vocab->vocab_size, 12u);
  EXPECT_EQ(vocab->specials.end_of_msg, 9);
  EXPECT_EQ(vocab->specials.pad, 11);
  EXPECT_EQ(vocab->dialect, ChatDialect::kNanoSft);
}

TEST(VocabJson, ReadsAnOwnVocabularyAndItsDialect) {
  Json json = Own();
  Result<VocabJson> vocab = ParseVocabJson(json.dump(), "v.json");
  ASSERT_TRUE(vocab) << vocab.error().ToString();
  EXPECT_EQ(vocab->format, VocabFormat::kOwn);
  EXPECT_EQ(vocab->base, "story.tiktoken");
  EXPECT_EQ(vocab->dialect, ChatDialect::kK3);
  json["chat_dialect"] = "nano-sft";
  vocab = ParseVocabJson(json.dump(), "v.json");
  ASSERT_TRUE(vocab);
  EXPECT_EQ(vocab->dialect, ChatDialect::kNanoSft);
  json["chat_dialect"] = "none";
  vocab = ParseVocabJson(json.dump(), "v.json");
  ASSERT_TRUE(vocab);
  EXPECT_FALSE(vocab->dialect);
  json.erase("format");  // "base" alone says that the vocabulary is the model's own
  vocab = ParseVocabJson(json.dump(), "v.json");
  ASSERT_TRUE(vocab);
  EXPECT_EQ(vocab->format, VocabFormat::kOwn);
}

TEST(VocabJson, DefaultsAndCutVocabularies) {
  Json json = Remap();
  json.erase("vocab_size");
  json["specials"].erase("pad");
  Result<VocabJson> vocab = ParseVocabJson(json.dump(), "v.json");
  ASSERT_TRUE(vocab);
  EXPECT_EQ(vocab->vocab_size, 12u);
  EXPECT_EQ(vocab->specials.pad, -1);
  // A cut vocabulary lists its specials among the ids.
  json["format"] = "microkimi-vocab-remap-1";
  json["nano_to_kimi"] = {1, 2, 163584, 163585, 163586, 163587, 163588, 163589, 163838};
  json["vocab_size"] = 9;
  json["specials"] = {{"bos", 2},   {"eos", 3}, {"end_of_msg", 4}, {"open", 5},
                      {"close", 6}, {"sep", 7}, {"unk", 8}};
  vocab = ParseVocabJson(json.dump(), "v.json");
  ASSERT_TRUE(vocab) << vocab.error().ToString();
  EXPECT_EQ(vocab->format, VocabFormat::kRemap);
}

TEST(VocabJson, EveryCheckRefusesWithOneLine) {
  struct Case {
    const char* what;
    std::function<void(Json&)> spoil;
    const char* message;
  };
  const Case cases[] = {
      {"no table", [](Json& j) { j.erase("nano_to_kimi"); }, "nano_to_kimi"},
      {"table is a string", [](Json& j) { j["nano_to_kimi"] = "x"; }, "nano_to_kimi"},
      {"empty table", [](Json& j) { j["nano_to_kimi"] = Json::array(); }, "nano_to_kimi"},
      {"negative", [](Json& j) { j["nano_to_kimi"][1] = -1; }, "nano_to_kimi[1]"},
      {"too large", [](Json& j) { j["nano_to_kimi"][1] = 163840; }, "nano_to_kimi[1]"},
      {"beyond 64 bits", [](Json& j) { j["nano_to_kimi"][1] = 18446744073709551615ull; }, "[1]"},
      {"fraction", [](Json& j) { j["nano_to_kimi"][1] = 1.5; }, "nano_to_kimi[1]"},
      {"string id", [](Json& j) { j["nano_to_kimi"][1] = "7"; }, "nano_to_kimi[1]"},
      {"repeated", [](Json& j) { j["nano_to_kimi"][1] = 10; }, "repeats id 10"},
      {"small vocab_size", [](Json& j) { j["vocab_size"] = 3; }, "vocab_size"},
      {"huge vocab_size", [](Json& j) { j["vocab_size"] = 1u << 30; }, "vocab_size"},
      {"vocab_size text", [](Json& j) { j["vocab_size"] = "12"; }, "vocab_size"},
      {"no specials", [](Json& j) { j.erase("specials"); }, "specials"},
      {"specials array", [](Json& j) { j["specials"] = Json::array(); }, "specials"},
      {"no sep", [](Json& j) { j["specials"].erase("sep"); }, "specials.sep is missing"},
      {"no unk", [](Json& j) { j["specials"].erase("unk"); }, "specials.unk is missing"},
      {"special out of range", [](Json& j) { j["specials"]["sep"] = 12; }, "specials.sep"},
      {"special twice", [](Json& j) { j["specials"]["sep"] = 4; }, "repeats id 4"},
      {"special is text", [](Json& j) { j["specials"]["sep"] = 2; }, "ordinary token"},
      {"format number", [](Json& j) { j["format"] = 1; }, "format"},
      {"dialect", [](Json& j) { j["chat_dialect"] = "latin"; }, "latin"},
      {"base is a path",
       [](Json& j) {
         j["format"] = "microkimi-vocab-remap-1";
         j["base"] = "../secret";
       },
       "\"base\""},
      {"base is a parent",
       [](Json& j) {
         j["format"] = "microkimi-vocab-remap-1";
         j["base"] = "..";
       },
       "\"base\""},
      {"digest", [](Json& j) { j["base_sha256"] = "abc"; }, "base_sha256"},
  };
  for (const Case& c : cases) {
    Json json = Remap();
    c.spoil(json);
    const Result<VocabJson> vocab = ParseVocabJson(json.dump(), "v.json");
    ASSERT_FALSE(vocab) << c.what;
    EXPECT_EQ(vocab.error().code, ErrorCode::kCorrupt) << c.what;
    EXPECT_NE(vocab.error().message.find(c.message), std::string::npos)
        << c.what << ": " << vocab.error().message;
    EXPECT_EQ(vocab.error().message.find("v.json"), 0u) << c.what;
  }
}

TEST(VocabJson, OwnVocabulariesAreHeldToTheirFile) {
  const std::function<void(Json&)> spoilers[] = {
      [](Json& j) {
        j["nano_to_kimi"] = {0, 1, 3, 2};
      },
      [](Json& j) {
        j["nano_to_kimi"] = {0, 1, 2, 4};
      },
      [](Json& j) { j.erase("base"); },
      [](Json& j) { j.erase("base_sha256"); },
      [](Json& j) { j["base_sha256"] = std::string(64, 'A'); },
      [](Json& j) { j["base"] = "a/b"; },
  };
  for (const auto& spoil : spoilers) {
    Json json = Own();
    spoil(json);
    EXPECT_FALSE(ParseVocabJson(json.dump(), "v.json")) << json.dump();
  }
}

TEST(VocabJson, ForeignFilesAreRefused) {
  for (const char* text : {"", "[]", "null", "{", "{\"a\":1,\"a\":2}", "{\"hello\": 0}", "\xFF"}) {
    EXPECT_FALSE(ParseVocabJson(text, "v.json")) << text;
  }
  Json json = Remap();
  json["format"] = "microkimi-vocab-remap-2";
  const Result<VocabJson> vocab = ParseVocabJson(json.dump(), "v.json");
  ASSERT_FALSE(vocab);
  EXPECT_EQ(vocab.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace mk
