// Tokenizer: text to token ids and back, for every architecture.
//
// Text that a user, a document or a model supplies goes through EncodeText or the content of a
// chat message and can never become a special token, whatever it spells. Special tokens come from
// EncodePrompt and RenderChat only.
//
// A Tokenizer is immutable after loading: every function is const and may be called from any
// number of threads at once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace mk {

struct EncodedText {
  std::vector<int32_t> ids;
  // How many of `ids` stand for text that the vocabulary cannot spell. Always 0 for vocabularies
  // that hold all 256 bytes.
  size_t unknown = 0;
};

// Model ids of the tokens that are not text; -1 where the vocabulary has none.
struct SpecialTokens {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t open = -1;
  int32_t close = -1;
  int32_t sep = -1;
  int32_t end_of_msg = -1;
  int32_t unk = -1;
  int32_t pad = -1;
};

enum class ChatRole { kSystem, kUser, kAssistant };

// "system", "user", "assistant". Errors: kUnsupported for "tool", kInvalidArgument for anything
// else; the message names the role.
Result<ChatRole> ParseChatRole(std::string_view name);
std::string_view ChatRoleName(ChatRole role);

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;    // UTF-8
  std::string reasoning;  // assistant only: text of the think channel
  std::string name;       // user and system only: optional name of the speaker
  // Assistant only: the ids that the message was generated as, after the head of its turn and
  // without a stop id. They stand in the prompt in place of the text when they spell exactly
  // `content` and `reasoning` and the markup between them, so that a prompt begins with the very
  // ids of the turn before; otherwise, as after an edit, the text is encoded.
  std::vector<int32_t> ids = {};
};

// How finished assistant turns are written into a prompt.
enum class ChatDialect {
  kK3,       // think and response channels, all closed
  kNanoSft,  // the answer stands in the think channel, nothing is closed; has no thinking mode
  kDsv4,     // DeepSeek-V4: marks of user and assistant; reasoning of the last turn alone
};

// "k3", "nano-sft", "dsv4". Errors: kInvalidArgument.
Result<ChatDialect> ParseChatDialect(std::string_view name);
std::string_view ChatDialectName(ChatDialect dialect);

struct ChatOptions {
  std::optional<ChatDialect> dialect;  // default: Tokenizer::default_dialect()
  bool thinking = true;                // false: no think channel (not kNanoSft)
  bool generation_prompt = true;       // end with the head of the assistant's next message
  // How hard to think, by a name of the model's chat assets; empty: nothing is said (kDsv4 only).
  std::string effort = {};
};

// What the text of a generated token belongs to.
enum class Channel {
  kAnswer,
  kReasoning,
  kHidden,  // markers, channel names, and channels that are neither
};
std::string_view ChannelName(Channel channel);  // "answer", "reasoning", "hidden"

// Follows the ids of one generated chat turn, from the end of the generation prompt. One per turn,
// one thread at a time.
class ChannelParser {
 public:
  virtual ~ChannelParser() = default;
  ChannelParser(const ChannelParser&) = delete;
  ChannelParser& operator=(const ChannelParser&) = delete;

  // Takes the next generated id; returns the channel of its text.
  virtual Channel Feed(int32_t id) = 0;
  // The ids that finish the turn as the template has it, to be ingested before the next message:
  // open channels closed, then the end of the message. The stop id itself, if one was picked, must
  // not have been fed.
  virtual std::vector<int32_t> ClosingIds() const = 0;

 protected:
  ChannelParser() = default;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // "k3" (full vocabulary), "k3-remap", "k3-own", "dsv4", "dsv4-remap", "bytes".
  virtual std::string_view kind() const = 0;
  // Ids are in [0, vocab_size).
  virtual size_t vocab_size() const = 0;
  virtual const SpecialTokens& specials() const = 0;

  // Plain text; never a special id (but unk, where the vocabulary cannot spell the text). Errors:
  // kInvalidArgument when the text is not UTF-8, naming the offset.
  virtual Result<EncodedText> EncodeText(std::string_view utf8) const = 0;
  // A prompt for plain completion: EncodeText, behind the beginning-of-text id where the models of
  // this vocabulary were trained with one.
  virtual Result<EncodedText> EncodePrompt(std::string_view utf8) const = 0;
  // A conversation. Errors: kInvalidArgument (not UTF-8, a field that the role does not have, no
  // messages), kUnsupported (no dialect is given and the vocabulary has none, or it has not the
  // marks of the dialect or not the effort).
  virtual Result<EncodedText> RenderChat(std::span<const ChatMessage> messages,
                                         const ChatOptions& options) const = 0;

  // Text of a token: any bytes, not necessarily whole characters. Empty for special tokens and for
  // ids outside the vocabulary. Valid as long as the tokenizer.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  // Name of a special token or stand-in for an id without text, for debugging views ("<|open|>");
  // empty when the id has text.
  virtual std::string TokenName(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;

  // Ids that end a generation; not part of its text.
  virtual std::span<const int32_t> prompt_stop_ids() const = 0;  // after EncodePrompt
  virtual std::span<const int32_t> chat_stop_ids() const = 0;    // after RenderChat

  // Nothing: models of this vocabulary were not taught to chat.
  virtual std::optional<ChatDialect> default_dialect() const = 0;
  // For the turn that follows RenderChat with the same options.
  virtual std::unique_ptr<ChannelParser> NewChannelParser(const ChatOptions& options) const = 0;

  // Text of many ids: bytes put together, every maximal ill-formed part replaced by one U+FFFD. A
  // character does not continue across a special token. Equals what Utf8Stream gives piecewise.
  std::string Decode(std::span<const int32_t> ids) const;

 protected:
  Tokenizer() = default;
};

// A conversation as one text that goes on and on, for models without a chat template: the contents
// of user and assistant messages one after another, each encoded on its own, behind what
// EncodePrompt puts first; `ids` of assistant messages as in RenderChat. Errors: kInvalidArgument
// (not UTF-8, no messages, a system message, reasoning or a name).
Result<EncodedText> RenderContinuousText(const Tokenizer& tokenizer,
                                         std::span<const ChatMessage> messages);

// Where the tokenizer of a model may come from.
struct TokenizerSources {
  std::string model_path;    // the model file; companions are looked for beside it. May be empty.
  size_t model_vocab = 0;    // rows of the model's head
  std::string config_label;  // key "tokenizer" of the model's config; "bytes" = byte tokenizer
  std::string vocab_path;    // vocabulary or tokenizer.json that the user named; empty = look
  std::string rank_path;     // rank file or tokenizer.json that the user named; empty = look
};

struct LoadedTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string vocab_path;  // files it was read from; empty when there is none
  std::string rank_path;
  std::vector<std::string> warnings;  // files found and left aside, one line each
};

// Finds and reads the tokenizer of a model <folder>/<stem>.bin:
//   vocabulary JSON  the named one, else <stem>.vocab.json, else vocab.json or vocab_ds_nano.json
//   in
//                    <folder>: kept tokens of a rank file or of a tokenizer.json
//   rank file        the named one, else the vocabulary's "base", else <stem>.tiktoken,
//                    base.tiktoken, tiktoken.model beside the vocabulary or the model
//   tokenizer.json   the named one (as either of the two above), else <stem>.tokenizer.json,
//                    tokenizer.json, microdeepseek.tokenizer.json beside the vocabulary or the
//                    model
//   chat assets      <name>.chat.json beside <name>.tokenizer.json, chat.json beside tokenizer.json
// Without a vocabulary JSON the rank file is the full Kimi vocabulary (163584 ranks, model vocab
// 163840), and a tokenizer.json is the whole vocabulary; without any, a model whose config says
// "bytes" has the byte tokenizer. A vocabulary of another size than the model's is an error when it
// was named (kIncompatible) and left aside with a warning when it was found. Errors: kNotFound (no
// tokenizer; the hint says what to give), kCorrupt, kIncompatible, kUnsupported, kIo,
// kPermissionDenied; messages name the file.
Result<LoadedTokenizer> LoadTokenizer(const TokenizerSources& sources);

}  // namespace mk
