// TextOutput: generated ids to text for the user: whole characters, by channel, stop strings cut.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate/stop_matcher.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8_stream.h"

namespace mk {

struct TextPiece {
  Channel channel = Channel::kAnswer;
  std::string text;  // valid UTF-8, not empty
};

class TextOutput {
 public:
  // `channels` may be null: then all text is answer. Stop strings are looked for in each channel on
  // its own; text of hidden channels is dropped.
  TextOutput(std::shared_ptr<const Tokenizer> tokenizer, std::unique_ptr<ChannelParser> channels,
             std::vector<std::string> stops);

  // Appends the text that this id completes. False when a stop string was completed.
  bool Push(int32_t id, std::vector<TextPiece>& out);
  // Appends what is still held back.
  void Finish(std::vector<TextPiece>& out);

  // Channel of the last id.
  Channel channel() const { return channel_; }
  std::optional<size_t> matched_stop() const { return matcher_.matched(); }
  // The rest of the turn's markup (ChannelParser::ClosingIds); empty without channels.
  std::vector<int32_t> ClosingIds() const;

 private:
  void Give(std::string text, std::vector<TextPiece>& out) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<ChannelParser> channels_;
  Utf8Stream stream_;
  StopMatcher matcher_;
  Channel channel_ = Channel::kAnswer;       // of the last id
  Channel text_channel_ = Channel::kAnswer;  // of the text held back
};

}  // namespace mk
