#include "engine/tokenizer/dsv4_vocabulary.h"

#include <utility>

#include "engine/tokenizer/dsv4_splitter.h"
#include "engine/tokenizer/unicode.h"

namespace mk {

Dsv4Vocabulary::Dsv4Vocabulary(TokenizerJson json)
    : tokens_(std::move(json.tokens)),
      merges_(json.byte_ids, json.merges),
      added_(std::move(json.added)) {
  if (!json.ignore_merges) return;
  std::vector<bool> is_added(tokens_.size());
  for (const AddedToken& token : added_.tokens()) is_added[static_cast<size_t>(token.id)] = true;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!is_added[id] && !tokens_[id].empty()) {
      whole_pieces_.emplace(tokens_[id], static_cast<int32_t>(id));
    }
  }
}

Result<std::vector<int32_t>> Dsv4Vocabulary::Encode(std::string_view utf8, Marks marks) const {
  std::vector<int32_t> ids;
  if (marks == Marks::kAsText) {
    if (Status status = Append(utf8, ids); !status) return Fail(status.error());
    return ids;
  }
  // Marks are whole characters, so what is between them is UTF-8 when all of it is.
  if (const Result<CodePoints> valid = DecodeUtf8(utf8); !valid) return Fail(valid.error());
  Status status;
  added_.Split(
      utf8,
      [&](std::string_view text) {
        if (status) status = Append(text, ids);
      },
      [&](const AddedToken& token) { ids.push_back(token.id); });
  if (!status) return Fail(status.error());
  return ids;
}

Status Dsv4Vocabulary::Append(std::string_view utf8, std::vector<int32_t>& ids) const {
  const Result<CodePoints> text = DecodeUtf8(utf8);
  if (!text) return Fail(text.error());
  size_t begin = 0;
  for (const size_t piece_end : SplitDsv4Text(text->values)) {
    const size_t end = text->offsets[piece_end];
    const std::string_view piece = utf8.substr(begin, end - begin);
    begin = end;
    if (!whole_pieces_.empty()) {
      if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
        ids.push_back(whole->second);
        continue;
      }
    }
    merges_.AppendPiece(piece, ids);
  }
  return {};
}

}  // namespace mk
