#include "engine/generate/text_output.h"

#include <utility>

namespace mk {

TextOutput::TextOutput(std::shared_ptr<const Tokenizer> tokenizer,
                       std::unique_ptr<ChannelParser> channels, std::vector<std::string> stops)
    : tokenizer_(std::move(tokenizer)),
      channels_(std::move(channels)),
      matcher_(std::move(stops)) {}

bool TextOutput::Push(int32_t id, std::vector<TextPiece>& out) {
  channel_ = channels_ ? channels_->Feed(id) : Channel::kAnswer;
  if (channel_ != text_channel_) Finish(out);
  text_channel_ = channel_;
  if (channel_ == Channel::kHidden || matcher_.matched()) return !matcher_.matched();
  const std::string_view bytes = tokenizer_->TokenBytes(id);
  Give(matcher_.Push(bytes.empty() ? stream_.Break() : stream_.Push(bytes)), out);
  return !matcher_.matched();
}

void TextOutput::Finish(std::vector<TextPiece>& out) {
  std::string text = matcher_.Push(stream_.Break());
  text += matcher_.Flush();
  Give(std::move(text), out);
}

std::vector<int32_t> TextOutput::ClosingIds() const {
  return channels_ ? channels_->ClosingIds() : std::vector<int32_t>();
}

void TextOutput::Give(std::string text, std::vector<TextPiece>& out) const {
  if (!text.empty()) out.push_back({text_channel_, std::move(text)});
}

}  // namespace mk
