// Model and Sequence: the two nouns of the engine.
//
// A Model is immutable once loaded, but for precisions that are prepared later, and may be read by
// any number of threads. A Sequence is one
// timeline of tokens and the state that they left behind (recurrent matrices, caches); it belongs
// to one thread at a time. An Executor owns what a forward pass needs beside them: the worker pool
// and scratch memory; one forward runs on it at a time.
//
// Forward() takes a batch of items. An item is a sequence and the tokens to ingest into it: one
// token for a sequence that decodes, many for one that reads its prompt. For every sequence the
// result is the same, bit for bit, whatever else is in the batch, however many workers the
// executor has, and however its prompt was cut (with chunked KDA: cut at multiples of 64).

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/spine_cache.h"
#include "engine/model/stream_options.h"
#include "engine/model/token_work.h"

namespace mk {

// Arithmetic of a sequence, fixed when it is made.
enum class Precision : uint8_t {
  kExact,  // f32 weights and activations, fixed reduction order
  kBf16,   // the same with weights rounded to bfloat16: equal bits where they are bfloat16 already
  kQ8,     // weights and activations as bytes with a scale per 32, MXFP4 experts by integers
};
inline constexpr size_t kPrecisions = 3;
// "exact", "bf16", "q8".
std::string_view PrecisionName(Precision precision);
std::optional<Precision> ParsePrecision(std::string_view name);

// What a caller may want to know of a loaded model. Sizes in bytes.
struct ModelInfo {
  std::string architecture;  // "k3", "deepseek_v4"
  std::string path;          // canonical path of the file
  std::string fingerprint;   // 32 hex digits, digest of header and sampled contents
  size_t vocab = 0;          // rows of the head: length of a logits row
  size_t hidden = 0;         // width of a residual stream
  size_t streams = 1;        // residual streams
  size_t layers = 0;
  size_t experts = 0;       // routed experts per MoE layer
  size_t top_k = 0;         // routed experts per token and layer
  uint64_t parameters = 0;  // weights in the file, decoded count
  uint64_t file_bytes = 0;
  uint64_t state_bytes = 0;      // fixed part of a sequence's state
  uint64_t bytes_per_token = 0;  // part of a sequence's state that grows with every token
  size_t max_tokens = 0;         // that a sequence can hold by the file's config; 0: no limit
  // With chunked prefill a prompt is read in whole blocks of so many tokens at absolute multiples
  // of it, and what is left token by token; 1: token by token throughout (in arithmetic, not in
  // work).
  size_t prompt_block = 1;
  int32_t bos = 0;  // from the file's config
  int32_t end_of_msg = 0;
  // Attention of every layer: "KDA" or "MLA"; "SWA" (a window alone), "CSA" (compressed rows that
  // an indexer picks), "HCA" (compressed rows, all of them).
  std::vector<std::string> layer_kinds;
};

struct SequenceOptions {
  Precision precision = Precision::kExact;
  size_t max_tokens = 1 << 20;  // hard limit of the timeline; Forward fails beyond it
  // Read full blocks of 64 tokens at absolute multiples of 64 with the chunked delta rule.
  // Off: strictly one token after the other.
  bool chunked_prefill = true;
  // Keep keys and values of latent attention expanded per head instead of as latent rows; needed
  // to continue states that hold only the expanded form. Costs memory and speed.
  bool expanded_kv = false;
};

// One timeline. Made by Model::NewSequence; outlives neither its model nor a second owner.
class Sequence {
 public:
  virtual ~Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Tokens ingested so far: the position of the next one.
  virtual size_t length() const = 0;
  // Bytes of state held now.
  virtual size_t state_bytes() const = 0;
  // An independent copy at the same point of time. It can go back as far as this one, and shares
  // with it what that takes.
  virtual Result<std::unique_ptr<Sequence>> Clone() const = 0;
  // How many of its last tokens it can forget. After a draft item (ForwardItem::draft) at least all
  // of its tokens that are still there, else 0 for states that only go forward.
  virtual size_t rewindable() const { return 0; }
  // Forgets the tokens from `length` on, as if they had never been fed: whatever is done with the
  // sequence then gives the bits of one that was fed only the others. Cheap, and may be repeated.
  // kInvalidArgument when that is more than rewindable(), and the sequence is as before; also after
  // a failed Forward.
  virtual Status Rewind(size_t length);
  // Makes the last draft final and gives back the memory that drafts took (Model::draft_bytes),
  // which is kept for the next draft otherwise. kOutOfMemory, and the sequence is as before.
  virtual Status EndDraft() { return {}; }

 protected:
  Sequence() = default;
};

// Called during Forward, on the calling thread, with data that is valid during the call only.
// `item` is the index in the batch, `position` the absolute position of the first row.
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  // Output of the attention part of a layer, before it is added: rows of [n][hidden].
  virtual void OnAttention(size_t /*item*/, size_t /*position*/, size_t /*layer*/,
                           std::span<const float> /*rows*/) {}
  // Output of the feed-forward part of a layer, before it is added: [n][hidden].
  virtual void OnFeedForward(size_t /*item*/, size_t /*position*/, size_t /*layer*/,
                             std::span<const float> /*rows*/) {}
  // Residual streams after a layer: [n][streams][hidden].
  virtual void OnHidden(size_t /*item*/, size_t /*position*/, size_t /*layer*/,
                        std::span<const float> /*rows*/) {}
  // Whether OnOutput is wanted of an item: it costs work.
  virtual bool WantsOutput(size_t /*item*/) const { return false; }
  // What the head reads, mixed from the residual streams after the last layer but not normalised
  // yet: [n][hidden].
  virtual void OnOutput(size_t /*item*/, size_t /*position*/, std::span<const float> /*rows*/) {}
  // Router picks of one position, best first (or in the order of a hash table), and their weights
  // after renormalisation: [top_k].
  virtual void OnRouter(size_t /*item*/, size_t /*position*/, size_t /*layer*/,
                        std::span<const int32_t> /*experts*/, std::span<const float> /*weights*/) {}
  // A group of tokens, the last of them at `position`, became compressed row `row` of a layer: its
  // values as they are attended to. In order of rows, when the layer's attention is done.
  virtual void OnCompressed(size_t /*item*/, size_t /*position*/, size_t /*layer*/, size_t /*row*/,
                            std::span<const float> /*values*/) {}
  // The compressed rows that an indexer picked for one position, ascending, and their scores; no
  // scores when there was nothing to choose.
  virtual void OnIndexer(size_t /*item*/, size_t /*position*/, size_t /*layer*/,
                         std::span<const int32_t> /*rows*/, std::span<const float> /*scores*/) {}
};

enum class LogitsWanted {
  kNone,  // ingest only
  kLast,  // one row, after the item's last token
  kAll,   // one row per token
};

// What a pass does about routed experts that are streamed and not in memory.
enum class ExpertAccess : uint8_t {
  kWait,    // it waits for them
  kShadow,  // it takes their shadows, if the model has some (StreamOptions::shadows), and never
            // waits: results are close to those of the model, and no more
};

struct ForwardItem {
  Sequence* sequence = nullptr;
  std::span<const int32_t> tokens;  // at least one, each in [0, vocab)
  LogitsWanted wanted = LogitsWanted::kLast;
  std::span<float> logits;  // [rows wanted][vocab], written by Forward
  // The tokens are guesses, kMaxDraftTokens at most: until the next Forward with the sequence, it
  // can go back to any length from before this item on (Sequence::Rewind). They are read one after
  // the other, wherever they begin and however many they are: the bits of logits and state are
  // those of as many items of one token. Taking all, some or none of them then costs no second
  // pass and no copy of the state.
  bool draft = false;
  ExpertAccess experts = ExpertAccess::kWait;
  // Written by Forward: picks of its tokens that shadows served.
  uint64_t shadowed = 0;
};

// Worker pool and scratch of forward passes; one Forward at a time. Grows its scratch when a
// larger batch comes, and allocates nothing when none does.
class Executor;

// Tokens that one Forward may carry in all its items together.
inline constexpr size_t kMaxForwardTokens = 512;
// Tokens that a draft item may carry: one that is settled and 64 guesses behind it.
inline constexpr size_t kMaxDraftTokens = 65;
// Block of the chunked delta rule, in tokens; prompts may be cut at its multiples.
inline constexpr size_t kPrefillBlock = 64;

struct LoadOptions {
  // What the loaded model serves at once.
  Precision precision = Precision::kExact;
  // Called with 0..1 while loading; return false to give up (kCancelled). May be empty.
  std::function<bool(double)> progress;
  // Called once with the bytes that what is loaded will hold, before any of them is allocated. An
  // error ends the load and is what it gives. May be empty.
  std::function<Status(uint64_t)> admit;
  // Worker threads for reading and packing.
  int threads = 1;
  // Leave the routed experts in the file and keep what fits into a budget. Not set: all of them are
  // read into memory.
  std::optional<StreamOptions> stream;
  // If not 0: do so only with a model that would take more bytes altogether.
  uint64_t stream_above = 0;
  // With a budget of 0: what the model may take altogether. The budget is what the rest of it
  // leaves, between the smallest that works and what all experts take. 0: no bound.
  uint64_t stream_room = 0;
  // Folder of lists of the experts that were in memory when a streamed model was left: read when it
  // is loaded, those experts then come in the background, and written when it goes. Empty: none.
  std::string hot_set_folder;
  // Where prepared spines are kept and looked for. By default nowhere.
  SpineCacheOptions spine_cache;
};

// Receives one row of Model::Lens, [vocab], valid during the call.
using LensSink = std::function<void(size_t row, std::span<const float> logits)>;

class Model {
 public:
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  virtual const ModelInfo& info() const = 0;

  // Anonymous memory that the model holds now, in bytes.
  virtual uint64_t resident_bytes() const = 0;

  // Whether sequences of this precision can be made: the one that LoadModel was asked for, and
  // those that Prepare has added since.
  virtual bool prepared(Precision precision) const = 0;
  // Whether the weights of this precision came from the folder of prepared spines.
  virtual bool spine_cached(Precision /*precision*/) const { return false; }
  // Reads the weights in the form of one more precision; nothing to do if they are there. Errors as
  // LoadModel; the model is as before after one.
  virtual Status Prepare(Precision precision, const LoadOptions& options) const = 0;

  // What streaming has done since the model was loaded; nothing when all experts are in memory. Any
  // thread.
  virtual std::optional<StreamStats> stream_stats() const { return std::nullopt; }
  // Another budget for streamed experts. kInvalidArgument when the model is not streamed,
  // kOutOfMemory when it is below what one token needs.
  virtual Status SetStreamBudget(uint64_t bytes) const;

  // What one token costs in a prepared precision; kInvalidArgument for another one. Slow for models
  // of many experts: it goes through the table of tensors.
  virtual Result<TokenWork> Work(Precision precision) const = 0;

  // The most that the state of a sequence holds when it has so many tokens, in any precision: its
  // pages are counted whole.
  virtual uint64_t state_bytes(size_t tokens) const = 0;
  // The most that a sequence holds beside that from its first draft item on until EndDraft, when
  // none of them has more than so many tokens. Guesses are tokens of state_bytes() too, until they
  // are taken back.
  virtual uint64_t draft_bytes(size_t /*tokens*/) const { return 0; }

  // Fails with kOutOfMemory or kInvalidArgument (a precision that is not prepared).
  virtual Result<std::unique_ptr<Sequence>> NewSequence(const SequenceOptions& options) const = 0;

  // Ingests every item's tokens and writes the logits that it wants. All sequences must be this
  // model's and distinct. Fails before touching any sequence on kInvalidArgument (no tokens, a
  // token id out of range, a logits span of the wrong size, more than kMaxForwardTokens, a draft of
  // more than kMaxDraftTokens) and kContextOverflow. After kNumeric ("non-finite hidden state,
  // layer l"), kIo or kOutOfMemory the sequences of the batch may be half-way between two states:
  // drop them. The model refuses them from then on (kInvalidArgument), so that nobody can continue
  // from garbage by mistake.
  virtual Status Forward(Executor& executor, std::span<ForwardItem> items,
                         ForwardObserver* observer = nullptr) const = 0;

  // Logit lens: what the head would say of residual streams on their way through the layers,
  // `streams`: [rows][streams][hidden] as OnHidden shows them. They leave by the model's own way
  // out, final norm and head, of several streams after their mixer for the head. Of what OnOutput
  // shows (one stream), and of the streams after the last layer (several), these are the model's
  // own logits, bit for bit. Calls `sink` for every row in order; holds few rows of logits at a
  // time. Errors: kInvalidArgument (a precision that is not prepared, a span of the wrong size),
  // kNumeric, kOutOfMemory, kUnsupported.
  virtual Status Lens(Executor& executor, Precision precision, std::span<const float> streams,
                      const LensSink& sink) const;

 protected:
  Model() = default;
};

// Opens a model file of any architecture. Errors: kNotFound, kPermissionDenied, kCorrupt,
// kUnsupported, kOutOfMemory, kIo, kCancelled; the message names the file.
Result<std::shared_ptr<const Model>> LoadModel(const std::string& path, const LoadOptions& options);

}  // namespace mk
