// Generation: one request over one sequence, as a state machine that a step scheduler drives.
//
//   generation.Begin();                                // when the prompt is in the sequence
//   already while (!generation.finished()) {
//     ForwardItem item = generation.NextItem(room);    // a piece of the prompt, or one token
//     model.Forward(executor, {item});                 // together with other requests' items
//     Result<GenerationStep> step = generation.Accept();  // tokens that were picked
//   }
//
// A stop token is neither emitted nor ingested. Every emitted token is ingested, but the last one
// only when the sequence is wanted: until NormaliseItem has been run, the sequence is one token
// behind what was emitted.
//
// With speculation an item may carry a draft behind the token to ingest. Each of its positions is
// picked from as in a plain run, with the same draw and after the same tokens, and the draft counts
// as far as it says what was picked; the sequence forgets the rest. So tokens, logits and state are
// those of a plain run, whatever was guessed.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/generate/shadow_draft.h"
#include "engine/generate/text_output.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "engine/speculate/speculator.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk {

enum class FinishReason {
  kNone,       // still running
  kStop,       // a stop token or a stop string
  kLength,     // max_new tokens emitted
  kCancelled,  // Cancel was called
};
std::string_view FinishReasonName(FinishReason reason);  // "none", "stop", "length", "cancelled"

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;

struct GenerationOptions {
  SamplingOptions sampling;
  size_t max_new = 256;            // tokens to emit at most; 0 = read the prompt only
  size_t context_limit = 0;        // tokens that the sequence may hold
  std::vector<int32_t> stop_ids;   // any of them ends the generation
  std::vector<std::string> stops;  // stop strings, valid UTF-8; need a tokenizer
  SpeculationOptions speculation;
  // Measured for all sequences of a model and precision; null: for this one alone.
  std::shared_ptr<PassCosts> pass_costs;
};

// The beginning of a prompt that its sequence has read before. What these tokens are is not looked
// at: it need not be known.
struct KnownPrompt {
  size_t tokens = 0;              // the last ones of the sequence
  std::span<const float> logits;  // after them: [vocab]; needed when they are the whole prompt
};

struct EmittedToken {
  int32_t id = 0;
  float probability = 0.0f;            // see Picked
  Channel channel = Channel::kAnswer;  // of its text
  std::vector<TextPiece> text;         // text that may be shown now, in order; often empty
};

// What one Accept brought.
struct GenerationStep {
  std::vector<EmittedToken> tokens;  // picked and emitted, in order
  // Last positions of the sequence whose logits were looked at: token i was picked from row i. A
  // row without a token is the last: it gave a stop token, or nothing was to be generated.
  size_t rows = 0;
  size_t drafted = 0;           // tokens of the item that were a guess; rows - 1 of them were right
  std::vector<TextPiece> text;  // what was still held back when no token came with the end
  FinishReason finish = FinishReason::kNone;
};

struct GenerationTimes {
  using Point = std::chrono::steady_clock::time_point;
  Point created;
  Point prefill_started;  // first NextItem
  Point prefill_done;     // logits after the last prompt token
  Point first_token;      // first token emitted
  Point finished;
};

class Generation {
 public:
  // Makes a generation that continues `sequence` (which must outlive it and be used by nobody else)
  // with `prompt`. `vocab`: length of a logits row. `tokenizer` may be null: no text is produced.
  // `channels`: for chat turns, else null. `known`: what of the prompt the sequence holds already.
  // Errors: kInvalidArgument (empty prompt without known logits, id out of range, bad options,
  // `known` does not fit), kContextOverflow (the sequence, the prompt and max_new tokens do not
  // fit).
  static Result<std::unique_ptr<Generation>> Create(Sequence& sequence, size_t vocab,
                                                    std::vector<int32_t> prompt,
                                                    GenerationOptions options,
                                                    std::shared_ptr<const Tokenizer> tokenizer,
                                                    std::unique_ptr<ChannelParser> channels,
                                                    const KnownPrompt& known = {});

  // Picks the first token when the whole prompt is known and no forward pass is needed for it; else
  // does nothing. Before the first NextItem. Errors: as Accept.
  Result<GenerationStep> Begin();

  // The next tokens to ingest, at most `max_tokens`; only before finished(). Pieces of the prompt
  // end at positions that are multiples of kPrefillBlock, except the last, so that the result does
  // not depend on max_tokens. Empty tokens: no such piece fits into max_tokens (never the case from
  // kPrefillBlock on). The spans in the item are the generation's and stay valid until Accept.
  ForwardItem NextItem(size_t max_tokens);
  // How long the forward pass with that item took, which carried `rows` tokens of all sequences
  // together. Before Accept; may be left out: it tells how many tokens to draft.
  void Took(size_t rows, double seconds);
  // After Model::Forward has run the item of the last NextItem. Errors: kNumeric, with the
  // position, and those of Sequence::Rewind; the generation must then be dropped.
  Result<GenerationStep> Accept();
  // Ends the generation; `text` of the result is what was still held back. Not between NextItem and
  // Accept. Does nothing once finished.
  GenerationStep Cancel();

  // The item that brings the sequence up to the last emitted token, with the logits after it.
  // Nothing when it is there already. Run it, then call AcceptNormalised.
  std::optional<ForwardItem> NormaliseItem();
  void AcceptNormalised();

  bool finished() const { return finish_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return finish_; }
  // The stop token that ended it, if one did; index of the stop string, if one did.
  std::optional<int32_t> stop_id() const { return stop_id_; }
  std::optional<size_t> stop_string() const;

  bool prefilling() const { return ingested_ < prompt_.size(); }
  size_t known_tokens() const { return known_; }  // of the prompt, at the beginning
  size_t prompt_tokens() const { return prompt_.size(); }
  size_t ingested_tokens() const { return ingested_; }  // of the prompt
  std::span<const int32_t> prompt() const { return prompt_; }
  std::span<const int32_t> emitted() const { return emitted_; }
  // Selections made so far, for SamplingOptions::first_draw of the next turn.
  uint64_t draws() const { return draws_; }
  // Logits after the last token of the sequence, or what was known of them: [vocab].
  std::span<const float> logits() const { return row(last_row_); }
  // Row `i` of the last step, see GenerationStep::rows; until the next NextItem.
  std::span<const float> row(size_t i) const {
    return std::span(logits_).subspan(i * vocab_, vocab_);
  }
  // Bytes that speculation takes beside the sequence's state, at most, for so many tokens.
  static uint64_t SpeculationBytes(const SpeculationOptions& options, size_t vocab, size_t tokens);
  // What became of drafts; null without speculation.
  const SpeculationStats* speculation() const {
    if (shadow_) return &shadow_->stats();
    return speculator_ ? &speculator_->stats() : nullptr;
  }
  const GenerationOptions& options() const { return options_; }
  const GenerationTimes& times() const { return times_; }
  Sequence& sequence() { return sequence_; }
  // For a chat turn: ids to ingest before the next message (see ChannelParser::ClosingIds).
  std::vector<int32_t> ClosingIds() const;

 private:
  Generation(Sequence& sequence, size_t vocab, std::vector<int32_t> prompt,
             GenerationOptions options);

  ForwardItem DecodeItem(size_t max_tokens);
  void AddDraft(size_t most);
  Result<GenerationStep> AcceptItem();
  Status ForgetDraft(const GenerationStep& step);
  Result<GenerationStep> PromptDone();
  Status Select(GenerationStep& step);
  void Emit(const Picked& picked, GenerationStep& step);
  void Finish(FinishReason reason, std::vector<TextPiece>& text);

  Sequence& sequence_;
  std::vector<int32_t> prompt_;
  GenerationOptions options_;
  Sampler sampler_;
  std::optional<TextOutput> output_;  // absent without a tokenizer
  const size_t vocab_;
  std::vector<float> logits_;  // [1 + longest draft][vocab]
  size_t last_row_ = 0;        // of logits_: after the last token of the sequence
  std::optional<Speculator> speculator_;
  std::optional<ShadowDraft> shadow_;  // in the place of the speculator
  std::vector<int32_t> item_;          // the last emitted token and what was drafted behind it

  size_t known_ = 0;      // tokens of the prompt that the sequence held at the beginning
  size_t ingested_ = 0;   // tokens of the prompt that the sequence holds
  size_t in_flight_ = 0;  // tokens of the prompt in the item that is being run
  bool pending_ = false;  // the last emitted token is not ingested yet
  std::vector<int32_t> emitted_;
  uint64_t draws_ = 0;
  FinishReason finish_ = FinishReason::kNone;
  std::optional<int32_t> stop_id_;
  GenerationTimes times_;
};

}  // namespace mk
