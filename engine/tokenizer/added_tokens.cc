#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace mk {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (const AddedToken& token : tokens_) Add(token, token.normalized ? normalized_ : plain_);
}

void AddedTokens::Add(const AddedToken& token, Table& table) {
  table.by_content.emplace(token.content, &token);
  std::vector<size_t>& lengths = table.lengths[static_cast<uint8_t>(token.content[0])];
  const auto place =
      std::lower_bound(lengths.begin(), lengths.end(), token.content.size(), std::greater<>());
  if (place == lengths.end() || *place != token.content.size()) {
    lengths.insert(place, token.content.size());
  }
}

const AddedToken* AddedTokens::Match(const Table& table, std::string_view text) {
  for (const size_t length : table.lengths[static_cast<uint8_t>(text[0])]) {
    if (length > text.size()) continue;
    const auto found = table.by_content.find(text.substr(0, length));
    if (found != table.by_content.end()) return found->second;
  }
  return nullptr;
}

void AddedTokens::SplitWith(const Table& table, std::string_view text,
                            const std::function<void(std::string_view)>& text_between,
                            const std::function<void(const AddedToken&)>& token) {
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const AddedToken* match = Match(table, text.substr(i));
    if (match == nullptr) {
      ++i;
      continue;
    }
    if (i > begin) text_between(text.substr(begin, i - begin));
    token(*match);
    begin = i += match->content.size();
  }
  if (begin < text.size()) text_between(text.substr(begin));
}

void AddedTokens::Split(std::string_view text,
                        const std::function<void(std::string_view)>& text_between,
                        const std::function<void(const AddedToken&)>& token) const {
  SplitWith(
      plain_, text,
      [&](std::string_view rest) { SplitWith(normalized_, rest, text_between, token); }, token);
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  for (const Table* table : {&plain_, &normalized_}) {
    const auto found = table->by_content.find(content);
    if (found != table->by_content.end()) return found->second;
  }
  return nullptr;
}

}  // namespace mk
