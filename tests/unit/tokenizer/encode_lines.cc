// encode_lines TOKENIZER_JSON: encodes texts and conversations from standard input, for comparison
// with other programs. A line out is the ids of a line in:
//   [text, marks]                      marks: whether marks in the text are taken as ids
//   {"messages": [...], "thinking": b, "head": b}
//                                      a conversation of {"role", "content", "reasoning"}, with or
//                                      without the head of the next turn

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/file.h"
#include "engine/tokenizer/dsv4_tokenizer.h"
#include "engine/tokenizer/dsv4_vocabulary.h"

namespace mk {
namespace {

using nlohmann::json;

class Encoder {
 public:
  static Result<Encoder> Read(const std::string& path) {
    Encoder out;
    for (int copy = 0; copy < 2; ++copy) {
      const Result<std::string> text = ReadWholeFile(path, kMaxTokenizerJsonBytes);
      if (!text) return Fail(text.error());
      Result<TokenizerJson> read = ParseTokenizerJson(*text, path);
      if (!read) return Fail(read.error());
      if (copy == 0) {
        out.vocabulary_ = std::make_unique<Dsv4Vocabulary>(std::move(*read));
        continue;
      }
      auto made = MakeDsv4Tokenizer(Dsv4Vocabulary(std::move(*read)), path);
      if (!made) return Fail(made.error());
      out.tokenizer_ = std::move(*made);
    }
    return out;
  }

  Result<std::vector<int32_t>> Encode(const json& row) const {
    if (row.is_array()) {
      using Marks = Dsv4Vocabulary::Marks;
      return vocabulary_->Encode(row[0].get_ref<const std::string&>(),
                                 row[1].get<bool>() ? Marks::kAsIds : Marks::kAsText);
    }
    std::vector<ChatMessage> messages;
    for (const json& m : row["messages"]) {
      const Result<ChatRole> role = ParseChatRole(m["role"].get<std::string>());
      if (!role) return Fail(role.error());
      messages.push_back({*role, m["content"], m.value("reasoning", ""), {}, {}});
    }
    const ChatOptions options{.dialect = ChatDialect::kDsv4,
                              .thinking = row["thinking"],
                              .generation_prompt = row["head"]};
    Result<EncodedText> chat = tokenizer_->RenderChat(messages, options);
    if (!chat) return Fail(chat.error());
    return std::move(chat->ids);
  }

 private:
  std::unique_ptr<Dsv4Vocabulary> vocabulary_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

int Run(const std::string& path) {
  const Result<Encoder> encoder = Encoder::Read(path);
  if (!encoder) {
    std::cerr << encoder.error().ToString() << '\n';
    return 1;
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const auto ids = encoder->Encode(json::parse(line));
    if (!ids) {
      std::cerr << ids.error().ToString() << '\n';
      return 1;
    }
    std::cout << json(*ids).dump() << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  return argc == 2 ? mk::Run(argv[1]) : 2;
}
