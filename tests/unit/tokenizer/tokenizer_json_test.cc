#include "engine/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/tokenizer/dsv4_vocab.h"

namespace mk {
namespace {

using nlohmann::json;

json Small() {
  return test::TokenizerJsonOf({{"a", "b"}, {"ab", "c"}}, {"<think>", "</think>"});
}

// The published pre_tokenizer, with CR and LF in the third pattern as characters or escaped.
json PreTokenizer(const std::string& newlines) {
  const auto split = [](const std::string& pattern) {
    return json{{"type", "Split"},
                {"pattern", {{"Regex", pattern}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  const std::string third = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)" + newlines +
                            R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)" + newlines +
                            R"(]*|\s*[)" + newlines + R"(]+|\s+(?!\S)|\s+)";
  return {{"type", "Sequence"},
          {"pretokenizers",
           {split(R"(\p{N}{1,3})"),
            split("[一-龥\u3040-ゟ゠-ヿ]+"),
            split(third),
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

struct Refusal {
  const char* name;
  std::function<void(json&)> change;
  const char* message;  // part of it
};

void ExpectRefused(const Refusal& refusal, json file) {
  refusal.change(file);
  const Result<TokenizerJson> parsed = ParseTokenizerJson(file.dump(), "some/tokenizer.json");
  ASSERT_FALSE(parsed) << refusal.name;
  const std::string& message = parsed.error().message;
  EXPECT_NE(message.find("some/tokenizer.json"), std::string::npos) << message;
  EXPECT_NE(message.find(refusal.message), std::string::npos) << refusal.name << ": " << message;
  EXPECT_FALSE(parsed.error().hint.empty());
}

TEST(TokenizerJson, ReadsTokensMergesAndMarks) {
  const Result<TokenizerJson> parsed = ParseTokenizerJson(Small().dump(), "test");
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  ASSERT_EQ(parsed->tokens.size(), 263u);
  EXPECT_EQ(parsed->tokens[3], std::string(1, '\0'));
  EXPECT_EQ(parsed->tokens[3 + ' '], " ");
  EXPECT_EQ(parsed->tokens[258], "\xFF");
  EXPECT_EQ(parsed->tokens[260], "abc");
  EXPECT_EQ(parsed->tokens[0], "<｜begin▁of▁sentence｜>");  // not in the alphabet: as it stands
  EXPECT_EQ(parsed->byte_ids[0xAD], 3 + 0xAD);
  ASSERT_EQ(parsed->merges.size(), 2u);
  EXPECT_EQ(parsed->merges[1].left, 259);
  EXPECT_EQ(parsed->merges[1].merged, 260);
  ASSERT_EQ(parsed->added.size(), 5u);
  EXPECT_EQ(parsed->added[3].content, "<think>");
  EXPECT_TRUE(parsed->added[3].special);
}

TEST(TokenizerJson, TakesMergesInBothForms) {
  json file = Small();
  file["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
  const Result<TokenizerJson> pairs = ParseTokenizerJson(file.dump(), "test");
  ASSERT_TRUE(pairs) << pairs.error().ToString();
  EXPECT_EQ(pairs->merges[1].left, 259);
  EXPECT_EQ(pairs->merges[1].merged, 260);
}

TEST(TokenizerJson, TakesThePublishedCutsAndNoOthers) {
  for (const char* newlines : {"\r\n", "\\r\\n"}) {
    json file = Small();
    file["pre_tokenizer"] = PreTokenizer(newlines);
    const Result<TokenizerJson> parsed = ParseTokenizerJson(file.dump(), "test");
    EXPECT_TRUE(parsed) << parsed.error().ToString();
  }
  json file = Small();
  file["pre_tokenizer"] = PreTokenizer("\r\n");
  const auto step = [](json& f, size_t i) -> json& {
    return f["pre_tokenizer"]["pretokenizers"][i];
  };
  const std::vector<Refusal> refusals = {
      {"null", [](json& f) { f["pre_tokenizer"] = nullptr; }, "pre_tokenizer"},
      {"number", [](json& f) { f["pre_tokenizer"] = 3; }, "pre_tokenizer"},
      {"bytes alone", [&](json& f) { f["pre_tokenizer"] = json(step(f, 3)); }, "three splits"},
      {"one cut less", [](json& f) { f["pre_tokenizer"]["pretokenizers"].erase(1); }, "three"},
      {"not an array", [](json& f) { f["pre_tokenizer"]["pretokenizers"] = 4; }, "three splits"},
      {"four digits", [&](json& f) { step(f, 0)["pattern"]["Regex"] = R"(\p{N}{1,4})"; },
       "step 1 has another pattern"},
      {"string pattern",
       [&](json& f) {
         step(f, 1)["pattern"] = {{"String", "a"}};
       },
       "step 2"},
      {"pattern of no type", [&](json& f) { step(f, 1)["pattern"] = "a"; }, "step 2"},
      {"step of no type", [&](json& f) { step(f, 1) = 7; }, "step 2"},
      {"removed", [&](json& f) { step(f, 2)["behavior"] = "Removed"; }, "step 3"},
      {"inverted", [&](json& f) { step(f, 2)["invert"] = true; }, "step 3"},
      {"another split", [&](json& f) { step(f, 2)["type"] = "Whitespace"; }, "step 3"},
      {"prefix space", [&](json& f) { step(f, 3)["add_prefix_space"] = true; }, "last"},
      {"own regex", [&](json& f) { step(f, 3).erase("use_regex"); }, "last"},
  };
  for (const Refusal& refusal : refusals) ExpectRefused(refusal, file);
}

TEST(TokenizerJson, RefusesWhatWouldChangeTheIds) {
  const auto model = [](const char* key, json value) {
    return [=](json& f) { f["model"][key] = value; };
  };
  const auto mark = [](const char* key) {
    return [=](json& f) { f["added_tokens"][3][key] = true; };
  };
  const std::vector<Refusal> refusals = {
      {"type", model("type", "WordPiece"), "model.type"},
      {"no type", [](json& f) { f["model"].erase("type"); }, "model.type"},
      {"unk", model("unk_token", "<unk>"), "model.unk_token"},
      {"dropout", model("dropout", 0.1), "model.dropout"},
      {"byte fallback", model("byte_fallback", true), "model.byte_fallback"},
      {"prefix", model("continuing_subword_prefix", "##"), "model.continuing_subword_prefix"},
      {"suffix", model("end_of_word_suffix", "</w>"), "model.end_of_word_suffix"},
      {"normalizer",
       [](json& f) {
         f["normalizer"] = {{"type", "NFC"}};
       },
       "normalizers"},
      {"single word", mark("single_word"), "added_tokens[3].single_word"},
      {"lstrip", mark("lstrip"), "added_tokens[3].lstrip"},
      {"rstrip", mark("rstrip"), "added_tokens[3].rstrip"},
      {"a mark that text becomes",
       [](json& f) {
         f["added_tokens"][3] = {{"id", 260}, {"content", "abc"}};
       },
       "ordinary text becomes"},
      {"a mark that is a byte",
       [](json& f) {
         f["added_tokens"][3] = {{"id", 3 + 'a'}, {"content", "a"}};
       },
       "ordinary text becomes"},
  };
  for (const Refusal& refusal : refusals) ExpectRefused(refusal, Small());
  json off = Small();
  off["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  off["model"].update({{"unk_token", nullptr},
                       {"dropout", nullptr},
                       {"byte_fallback", false},
                       {"continuing_subword_prefix", ""},
                       {"end_of_word_suffix", nullptr}});
  EXPECT_TRUE(ParseTokenizerJson(off.dump(), "test"));
}

TEST(TokenizerJson, RefusesDamagedFilesByEntry) {
  const auto vocab = [](const char* token, json id) {
    return [=](json& f) { f["model"]["vocab"][token] = id; };
  };
  const auto merge = [](json entry) { return [=](json& f) { f["model"]["merges"][1] = entry; }; };
  const auto mark = [](const char* key, json value) {
    return [=](json& f) { f["added_tokens"][3][key] = value; };
  };
  const std::vector<Refusal> refusals = {
      {"an array", [](json& f) { f = json::array({1}); }, "not an object"},
      {"no model", [](json& f) { f.erase("model"); }, "\"model\""},
      {"model of no type", [](json& f) { f["model"] = "x"; }, "\"model\""},
      {"no vocab", [](json& f) { f["model"].erase("vocab"); }, "model.vocab"},
      {"vocab as array",
       [](json& f) {
         f["model"]["vocab"] = {1, 2};
       },
       "model.vocab"},
      {"id as text", vocab("zz", "5"), "model.vocab \"zz\""},
      {"negative id", vocab("zz", -1), "model.vocab \"zz\""},
      {"fraction", vocab("zz", 1.5), "model.vocab \"zz\""},
      {"id 2^20", vocab("zz", 1 << 20), "model.vocab \"zz\""},
      {"id 2^40", vocab("zz", int64_t{1} << 40), "model.vocab \"zz\""},
      {"id twice", vocab("zz", 259), "id 259"},
      {"empty token", vocab("", 300), "1 to 4096 bytes"},
      {"huge token", [](json& f) { f["model"]["vocab"][std::string(5000, 'z')] = 300; },
       "1 to 4096 bytes"},
      {"a byte missing", [](json& f) { f["model"]["vocab"].erase("Ġ"); }, "for byte 32"},
      {"no merges", [](json& f) { f["model"].erase("merges"); }, "model.merges"},
      {"merges as object", [](json& f) { f["model"]["merges"] = json::object(); }, "model.merges"},
      {"one part", merge("ab"), "model.merges[1]"},
      {"three parts", merge("a b c"), "model.merges[1]"},
      {"merge of numbers", merge({1, 2}), "model.merges[1]"},
      {"array of three", merge({"a", "b", "c"}), "model.merges[1]"},
      {"unknown part", merge("ab zz"), "model.merges[1]: \"zz\""},
      {"empty part", merge("ab "), "model.merges[1]: \"\""},
      {"unknown result", merge("ab d"), "model.merges[1]: \"abd\""},
      {"pair twice", merge("a b"), "model.merges[1] repeats"},
      {"ignore_merges", [](json& f) { f["model"]["ignore_merges"] = 1; }, "ignore_merges"},
      {"marks as object", [](json& f) { f["added_tokens"] = json::object(); }, "added_tokens"},
      {"mark as text", [](json& f) { f["added_tokens"][3] = "x"; }, "added_tokens[3]"},
      {"mark without id", [](json& f) { f["added_tokens"][3].erase("id"); }, "added_tokens[3].id"},
      {"mark with id 2^20", mark("id", 1 << 20), "added_tokens[3].id"},
      {"mark without content", mark("content", nullptr), "added_tokens[3].content"},
      {"mark with no content", mark("content", ""), "1 to 4096 bytes"},
      {"special as number", mark("special", 1), "added_tokens[3].special"},
      {"content twice", mark("content", "</think>"), "added_tokens[4] repeats"},
      {"mark id twice", mark("id", 262), "added_tokens[4] repeats id 262"},
      {"id of a token", mark("id", 259), "id 259"},
      {"two ids", [](json& f) { f["model"]["vocab"]["<think>"] = 300; }, "300 in model.vocab"},
  };
  for (const Refusal& refusal : refusals) ExpectRefused(refusal, Small());
}

TEST(TokenizerJson, RefusesTextThatIsNotStrictJson) {
  const std::string good = Small().dump();
  ASSERT_TRUE(ParseTokenizerJson(good, "t"));
  EXPECT_FALSE(ParseTokenizerJson(good.substr(0, good.size() - 1), "t"));
  EXPECT_FALSE(ParseTokenizerJson("", "t"));
  std::string twice = good;
  twice.replace(twice.find("\"ab\":259"), 8, "\"ab\":259,\"ab\":259");
  const auto repeated = ParseTokenizerJson(twice, "t");
  ASSERT_FALSE(repeated);
  EXPECT_NE(repeated.error().message.find("twice"), std::string::npos);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  EXPECT_FALSE(ParseTokenizerJson(deep, "t"));
}

// Any one byte changed: an error or a vocabulary, and never anything else.
TEST(TokenizerJson, SurvivesEveryChangedByte) {
  const std::string good = Small().dump();
  size_t read = 0;
  for (size_t i = 0; i < good.size(); i += 3) {
    for (const char c : {'"', '9', '\xC4', '}'}) {
      std::string bad = good;
      bad[i] = c;
      Result<TokenizerJson> parsed = ParseTokenizerJson(bad, "t");
      if (!parsed) continue;
      ++read;
      const Dsv4Vocabulary vocabulary(std::move(*parsed));
      const auto ids = vocabulary.Encode("abc <think> é", Dsv4Vocabulary::Marks::kAsIds);
      ASSERT_TRUE(ids);
      for (const int32_t id : *ids) ASSERT_LT(static_cast<size_t>(id), vocabulary.size());
    }
  }
  EXPECT_GT(read, 0u);
}

}  // namespace
}  // namespace mk
