#include "engine/tokenizer/generated_turn.h"

#include <algorithm>
#include <array>

#include "engine/tokenizer/utf8_stream.h"

namespace mk {
namespace {

// The text of one channel; a character does not continue across a change of channels.
class ChannelText {
 public:
  void Push(std::string_view bytes) {
    text_ += bytes.empty() ? stream_.Break() : stream_.Push(bytes);
  }
  void Break() { text_ += stream_.Break(); }
  const std::string& text() const { return text_; }

 private:
  Utf8Stream stream_;
  std::string text_;
};

bool IsTemplateTag(std::string_view tag) {
  constexpr std::array<std::string_view, 3> kTags = {"think", "response", "message"};
  return std::find(kTags.begin(), kTags.end(), tag) != kTags.end();
}

bool EndsTurn(const Tokenizer& tokenizer, int32_t id) {
  const auto stops = tokenizer.chat_stop_ids();
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

}  // namespace

bool IsGeneratedAs(const ChatMessage& message, const Tokenizer& tokenizer, ChannelParser& parser) {
  ChannelText answer;
  ChannelText reasoning;
  std::string hidden;  // text of a tag, or of a channel that is not shown
  Channel last = Channel::kHidden;
  for (const int32_t id : message.ids) {
    const bool in_vocabulary = id >= 0 && static_cast<size_t>(id) < tokenizer.vocab_size();
    if (!in_vocabulary || EndsTurn(tokenizer, id)) return false;
    const Channel channel = parser.Feed(id);
    if (channel != last) {
      answer.Break();
      reasoning.Break();
      last = channel;
    }
    if (channel == Channel::kAnswer) {
      answer.Push(tokenizer.TokenBytes(id));
    } else if (channel == Channel::kReasoning) {
      reasoning.Push(tokenizer.TokenBytes(id));
    } else if (id != tokenizer.specials().sep) {
      hidden += tokenizer.TokenBytes(id);
    } else {
      if (!IsTemplateTag(hidden)) return false;
      hidden.clear();
    }
  }
  answer.Break();
  reasoning.Break();
  return hidden.empty() && answer.text() == message.content &&
         reasoning.text() == message.reasoning;
}

}  // namespace mk
