// Small tokenizer.json files for the tests.

#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/dsv4_vocabulary.h"
#include "tests/unit/tokenizer/test_vocab.h"

namespace mk::test {

inline constexpr int kFirstMerged = 259;  // id of what the first merge makes

// Marks at 0, 1, 2; bytes at 3 + byte; what the merges make from 259 on; then `marks`.
inline nlohmann::json TokenizerJsonOf(
    const std::vector<std::pair<std::string, std::string>>& merges,
    const std::vector<std::string>& marks = {"<｜User｜>", "<｜Assistant｜>", "<think>",
                                             "</think>"}) {
  nlohmann::json vocab;
  nlohmann::json added = nlohmann::json::array();
  const auto mark = [&](const std::string& content, int id) {
    added.push_back({{"id", id}, {"content", content}, {"special", true}, {"normalized", false}});
  };
  int next = 0;
  for (const char* name : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"}) {
    vocab[name] = next;
    mark(name, next++);
  }
  for (int byte = 0; byte < 256; ++byte) {
    vocab[ByteCharacter(static_cast<unsigned char>(byte))] = next++;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = next++;
    list.push_back(left + " " + right);
  }
  for (const std::string& name : marks) mark(name, next++);
  return {{"added_tokens", added},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline Dsv4Vocabulary VocabularyOf(const nlohmann::json& json) {
  Result<TokenizerJson> parsed = ParseTokenizerJson(json.dump(), "test");
  EXPECT_TRUE(parsed) << parsed.error().ToString();
  return Dsv4Vocabulary(std::move(*parsed));
}

}  // namespace mk::test
