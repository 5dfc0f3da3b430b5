// Every message between client and daemon, as a struct.
//
// On the wire a message is one msgpack map in one frame:
//
//   request  {v, id, op, args}         id: chosen by the client, unique among its open requests
//   reply    {v, id, type, seq, body}  type: accepted, event, chunk, done, error; seq: 0, 1, 2, ...
//                                      per request over all its replies
//
// A request is answered by `accepted` (run, score, load, verify, build,
// bench, absorb, eval, compare and job_attach only), any number of
// `event` and `chunk`, then exactly one `done` or `error`; `ack` is never answered unless it is
// malformed.
//
// Requests are strict: an unknown op, an unknown, doubled or missing field and a value out of range
// are errors that name it; only hello and stop are taken in any version and with fields that are
// not known, so that versions can tell each other apart and replace each other. Replies are lenient
// about fields that a newer daemon may add. The fields' names, ranges and meaning on the wire are
// declared once, in request_fields.h and reply_fields.h, in the order of the members here.
//
// A member that is a std::optional may be left out; any other member of args that may be left out
// has its default here. Paths are absolute.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/error.h"
#include "protocol/job_messages.h"
#include "protocol/limits.h"
#include "protocol/look_messages.h"
#include "protocol/metrics_messages.h"
#include "protocol/model_selector.h"
#include "protocol/prefix_messages.h"
#include "protocol/sampling_messages.h"
#include "protocol/score_messages.h"
#include "protocol/session_messages.h"
#include "protocol/speculation_messages.h"
#include "protocol/stream_messages.h"
#include "protocol/version.h"

namespace mk::protocol {

// ---------------------------------------------------------------- requests

struct HelloArgs {
  uint32_t protocol_min = kProtocolMin;
  uint32_t protocol_max = kProtocolMax;
  std::string build_id;
  std::string client;  // program name, for status
  uint64_t pid = 0;    // 0: not told
  bool operator==(const HelloArgs&) const = default;
};

struct PingArgs {
  bool operator==(const PingArgs&) const = default;
};
struct StatusArgs {
  bool operator==(const StatusArgs&) const = default;
};
struct ModelsArgs {
  bool operator==(const ModelsArgs&) const = default;
};

struct LoadArgs {
  ModelSelector model;
  // Time without use after which it goes; -1: never for that reason; none: the daemon's setting.
  std::optional<int64_t> keep_alive_ms;
  std::string precision = kAutoPrecision;
  bool pin = false;   // until it is unloaded: neither time nor others' need of room make it go
  StreamWish stream;  // loads it again if it is loaded otherwise and nobody uses it
  bool operator==(const LoadArgs&) const = default;
};

struct UnloadArgs {
  std::string model;  // "": every model that nobody uses
  bool operator==(const UnloadArgs&) const = default;
};

// What was said in a conversation.
struct ConversationMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  std::string reasoning;  // assistant only: text of the think channel
  // Assistant only: RunDone::ids of the turn. They are read again in place of the text if that is
  // what they spell, so that the prompt begins with the very ids of the turn before.
  std::vector<int32_t> ids;
  bool operator==(const ConversationMessage&) const = default;
};

// Priorities. What runs in the background has what the others leave, and a small share in any case.
inline constexpr const char* kInteractive = "interactive";
inline constexpr const char* kBackground = "background";

struct RunArgs {
  ModelSelector model;
  StreamWish stream;
  // Exactly one of the three; in a session no messages. In a session or with `memory`, and with
  // `raw`, perhaps none at all.
  std::optional<std::string> prompt;        // UTF-8
  std::optional<std::vector<int32_t>> ids;  // as they are, nothing is put before them
  std::optional<std::vector<ConversationMessage>> messages;  // the next turn is generated
  // true: plain completion; messages are read as one text. false: a chat turn.
  bool raw = false;
  std::optional<std::string> system;  // chat only, with a prompt
  bool thinking = true;               // chat only
  std::string dialect;                // chat only: "k3", "nano-sft", "dsv4"; "": the vocabulary's
  uint32_t max_new = 256;             // tokens to generate; 0: read the prompt only
  double temperature = 0;             // 0: greedy
  double top_p = 1;
  uint32_t top_k = 0;  // 0: off
  double min_p = 0;    // 0: off
  // Longest drafts to verify in one pass, as n-grams of the text and a suffix automaton over it
  // propose them; 0: none. The answer is the same.
  uint32_t spec = 0;
  uint32_t spec_rosa = 0;
  // Longest draft by the model with shadows in the place of experts that are not in memory; 0:
  // none. In the place of the two above.
  uint32_t spec_shadow = 0;
  // Take shadows for experts that are not in memory instead of waiting: degraded.
  bool stream_fallback = false;
  ProcessingOptions processing;
  std::vector<std::string> ban_text;  // tokens that must not come, by their texts
  std::optional<uint64_t> seed;
  std::string precision = kAutoPrecision;
  bool chunked_prefill = true;
  bool prefix_cache = true;  // false: read the whole prompt, and keep nothing of it
  // Memory packs: absolute paths, or names in the daemon's state folder; "": none. The run goes on
  // from the first, and its prompt comes on top; plain text may have none and go on as it was. The
  // second is made of what the run leaves, before `done`, and may replace another pack.
  std::string memory;
  std::string save;
  uint32_t save_format = 2;       // 1: MKMEM001, of the reference engine
  std::vector<std::string> stop;  // text that ends the answer, not part of it
  uint64_t timeout_ms = 0;        // 0: none
  std::string priority = kInteractive;
  // Log probabilities of every token and of so many that were likeliest in its place.
  std::optional<uint32_t> logprobs;
  bool want_logits = false;
  bool want_hidden = false;
  bool want_routes = false;
  // Logit lens: "" (none), "last" (after the last token of the prompt), "answer" (and after every
  // generated one), "all" (after every token). `lens_layers`: those to look after; none: all.
  std::string lens;
  uint32_t lens_top = 5;
  std::vector<uint32_t> lens_layers;
  bool want_hidden_stats = false;
  bool want_experts = false;
  bool stats = false;                // percentiles in `timing`
  uint32_t window = kDefaultWindow;  // replies that may be unacknowledged
  // Name of the session that it goes on with; "": none. The model, its precision and the form of
  // the text are then the session's where they are left open here. `prompt` is what is said next;
  // a text is gone on with where there is none. A `system` message replaces the session's; ""
  // removes it.
  std::string session;
  // Turns of the session, from the last one back, whose place this one takes when it is kept.
  uint64_t session_undo = 0;
  bool operator==(const RunArgs&) const = default;
};

struct CancelArgs {
  uint64_t request = 0;  // id of a request of the same connection
  bool operator==(const CancelArgs&) const = default;
};

// Everything of `request` up to and including `seq` has been shown. Sent at least every
// kAckIntervalMs while a request with `accepted` is open, as a sign of life.
struct AckArgs {
  uint64_t request = 0;
  uint64_t seq = 0;
  bool operator==(const AckArgs&) const = default;
};

struct StopArgs {
  std::optional<uint64_t> grace_ms;  // running requests may finish for so long
  bool operator==(const StopArgs&) const = default;
};

struct TokenizeArgs {
  ModelSelector model;
  std::string text;
  bool chat = false;   // the ids of a chat prompt with `text` as the user's message
  bool plain = false;  // without the beginning-of-text id
  std::optional<std::string> system;
  bool thinking = true;
  std::string dialect;
  bool operator==(const TokenizeArgs&) const = default;
};

struct DetokenizeArgs {
  ModelSelector model;
  std::vector<int32_t> ids;
  bool operator==(const DetokenizeArgs&) const = default;
};

struct MetricsArgs {
  std::string form = "text";  // "text", "families"
  bool operator==(const MetricsArgs&) const = default;
};

// In the order of Op.
using Args =
    std::variant<HelloArgs, PingArgs, StatusArgs, ModelsArgs, LoadArgs, UnloadArgs, RunArgs,
                 CancelArgs, AckArgs, StopArgs, TokenizeArgs, DetokenizeArgs, VerifyArgs, BuildArgs,
                 BenchArgs, MetricsArgs, JobsArgs, JobStartArgs, JobAttachArgs, JobShowArgs,
                 JobCancelArgs, JobResumeArgs, JobRemoveArgs, SessionsArgs, SessionNewArgs,
                 SessionShowArgs, SessionForkArgs, SessionUndoArgs, SessionRenameArgs,
                 SessionRemoveArgs, SessionSaveArgs, SessionRestoreArgs, SessionDiffArgs,
                 AbsorbArgs, PckInfoArgs, PckCleanArgs, ScoreArgs, ExpertStatsArgs, ShadowArgs,
                 EvalArgs, CompareArgs>;

enum class Op {
  kHello,
  kPing,
  kStatus,
  kModels,
  kLoad,
  kUnload,
  kRun,
  kCancel,
  kAck,
  kStop,
  kTokenize,
  kDetokenize,
  kVerify,
  kBuild,
  kBench,
  kMetrics,
  kJobs,
  kJobStart,
  kJobAttach,
  kJobShow,
  kJobCancel,
  kJobResume,
  kJobRemove,
  kSessions,
  kSessionNew,
  kSessionShow,
  kSessionFork,
  kSessionUndo,
  kSessionRename,
  kSessionRemove,
  kSessionSave,
  kSessionRestore,
  kSessionDiff,
  kAbsorb,
  kPckInfo,
  kPckClean,
  kScore,
  kExpertStats,
  kShadow,
  kEval,
  kCompare,
};

struct Request {
  uint32_t version = kProtocolMax;
  uint64_t id = 0;
  Args args;
  bool operator==(const Request&) const = default;
};

inline Op OpOf(const Request& request) {
  return static_cast<Op>(request.args.index());
}

// ---------------------------------------------------------------- replies on the way

// The request is in the queue or running.
struct Accepted {
  uint64_t queue_position = 0;  // requests before it; 0: next or running
  bool operator==(const Accepted&) const = default;
};

// type "event"
struct Progress {
  std::string
      stage;  // "queue", "load", "prefill", "verify", "build", "bench", "absorb", "score", "eval"
  uint64_t done = 0;  // for "queue": requests before it
  uint64_t total = 0;
  std::string unit;  // "requests", "bytes", "tokens", "percent"
  bool operator==(const Progress&) const = default;
};

// type "chunk", kind "token": one generated token. Text is whole characters: that of an incomplete
// one comes with the token that completes it, and what remains at the end with RunDone::rest.
struct TokenChunk {
  uint32_t index = 0;  // 0 for the first generated token
  int32_t id = 0;
  std::string text;
  std::string channel;  // "answer", "reasoning", "hidden"; "": plain completion
  // With RunArgs::logprobs, from the logits as the model gave them, in nats.
  std::optional<double> logprob;
  std::optional<std::vector<Alternative>> top;  // likeliest first; with RunArgs::logprobs above 0
  bool operator==(const TokenChunk&) const = default;
};

// type "chunk", kind "logits": f32 LE [vocab], after the token at `position`: for the last of the
// prompt and every generated one. Kind "hidden": f32 LE [layer][hidden] of the token at `position`,
// for every token that was ingested. A row of more than kMaxPieceBytes comes in pieces, in order.
struct TensorChunk {
  std::string kind;
  uint64_t position = 0;   // absolute
  uint64_t row_bytes = 0;  // of the whole row
  uint64_t offset = 0;     // of this piece in the row
  std::string data;
  bool operator==(const TensorChunk&) const = default;
};

// type "chunk", kind "routes": what routers and indexers picked for the token at `position`.
struct RouterPick {
  uint32_t layer = 0;
  std::vector<int32_t> experts;  // best first, [top_k]
  std::vector<double> weights;   // after renormalisation, [top_k]
  bool operator==(const RouterPick&) const = default;
};
// The compressed rows that an indexer picked.
struct IndexPick {
  uint32_t layer = 0;
  std::vector<int32_t> rows;   // ascending
  std::vector<double> scores;  // of the rows; none when there was nothing to choose
  bool operator==(const IndexPick&) const = default;
};
// Row `row` of a layer's compressed cache: made of a group of tokens that ends at the position.
struct CompressedRow {
  uint32_t layer = 0;
  uint64_t row = 0;
  bool operator==(const CompressedRow&) const = default;
};
struct RoutesChunk {
  uint64_t position = 0;
  std::vector<RouterPick> layers;
  // Of architectures with compressed attention.
  std::vector<IndexPick> indexed;
  std::vector<CompressedRow> compressed;
  bool operator==(const RoutesChunk&) const = default;
};

// ---------------------------------------------------------------- type "done"

struct HelloDone {
  uint32_t protocol = kProtocolMax;  // the version to use
  uint32_t protocol_min = kProtocolMin;
  uint32_t protocol_max = kProtocolMax;
  std::string version;
  std::string build_id;
  uint64_t pid = 0;
  bool operator==(const HelloDone&) const = default;
};

struct PingDone {
  uint64_t pid = 0;
  uint64_t uptime_ms = 0;
  bool operator==(const PingDone&) const = default;
};

struct ModelStatus {
  std::string path;
  std::string architecture;
  std::string fingerprint;
  std::string state;    // "loading", "ready", "replaced" (the file changed; ends with its users)
  double progress = 0;  // of loading, 0..1
  uint64_t file_bytes = 0;              // mapped
  uint64_t memory_bytes = 0;            // held beside the mapping
  uint64_t users = 0;                   // requests that hold it
  int64_t keep_alive_ms = 0;            // -1: for ever
  uint64_t idle_ms = 0;                 // since its last user left
  std::vector<std::string> precisions;  // that it can run in
  std::vector<std::string> preparing;   // that are being read, or will be
  // Chat template that its vocabulary names: "k3", "nano-sft", "dsv4"; "": none.
  std::string chat_dialect;
  bool pinned = false;
  std::optional<uint64_t> expires_ms;      // when it goes if nobody uses it; none: not by itself
  std::map<std::string, uint64_t> memory;  // bytes: "weights", "sequences" of the runs on it
  std::vector<std::string> holders;        // requests that use it: "CLIENT OP"
  std::optional<StreamStatus> stream;      // if its experts stay in the file
  bool operator==(const ModelStatus&) const = default;
};

struct RequestStatus {
  std::string client;  // a name for the connection
  uint64_t id = 0;
  std::string op;
  std::string model;
  std::string phase;  // "queued", "loading", "prefill", "decode", "paused" (its client does not
                      // keep up), "working"
  uint64_t prompt_done = 0;
  uint64_t prompt_total = 0;
  uint64_t generated = 0;
  double tokens_per_second = 0;
  uint64_t age_ms = 0;
  uint64_t state_bytes = 0;
  std::string priority;  // of a run
  bool operator==(const RequestStatus&) const = default;
};

// How long something took, over the daemon's life.
struct LatencyStatus {
  std::string name;  // "queue_wait", "first_token", "token", "step", "load"
  uint64_t count = 0;
  double mean_ms = 0;
  double p50_ms = 0;  // percentiles, to an eighth of their value
  double p90_ms = 0;
  double p99_ms = 0;
  bool operator==(const LatencyStatus&) const = default;
};

struct StatusDone {
  std::string version;
  std::string build_id;
  uint64_t pid = 0;
  uint64_t uptime_ms = 0;
  std::string socket;
  std::string log;           // file; "": standard error
  std::string journal_unit;  // user unit whose journal holds standard error; "": it is no journal
  std::string state_directory;
  bool stopping = false;
  uint64_t threads = 0;
  uint64_t max_batch = 0;
  uint64_t connections = 0;
  std::string precision;                     // of requests that ask for "auto"
  std::map<std::string, uint64_t> memory;    // bytes: "budget", "used", "models", "sequences", ...
  std::map<std::string, uint64_t> counters;  // `mk metrics` tells what they count
  std::vector<ModelStatus> models;
  std::vector<RequestStatus> requests;
  std::vector<LatencyStatus> latency;
  std::vector<JobStatus> jobs;  // queued and running, in order
  std::string jobs_trouble;     // why records of jobs are not saved; "": they are
  bool operator==(const StatusDone&) const = default;
};

struct ModelEntry {
  std::string name;
  std::string path;
  std::string origin;  // "alias", "user", "bundled"
  bool is_default = false;
  bool loaded = false;
  uint64_t file_bytes = 0;
  std::string architecture;             // "": the file cannot be used
  std::string error;                    // why not
  std::vector<std::string> precisions;  // that it is loaded in
  bool operator==(const ModelEntry&) const = default;
};
struct ModelsDone {
  std::vector<ModelEntry> models;
  bool operator==(const ModelsDone&) const = default;
};

struct LoadDone {
  ModelStatus model;
  uint64_t load_ms = 0;
  bool was_loaded = false;  // in this precision
  std::vector<std::string> warnings;
  std::string precision;  // the one that was asked for; never "auto"
  // Its weights came prepared from the daemon's cache of them.
  bool spine_cached = false;
  bool operator==(const LoadDone&) const = default;
};

struct UnloadDone {
  uint64_t unloaded = 0;
  bool operator==(const UnloadDone&) const = default;
};

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t unk = 0;     // tokens of the prompt that stand for text that the vocabulary cannot spell
  uint64_t cached = 0;  // tokens of the prompt that were read before and not read again
  bool operator==(const Usage&) const = default;
};

struct Timing {
  double queue_ms = 0;    // from arrival to the first step, without loading
  double load_ms = 0;     // waiting for the model
  double prefill_ms = 0;  // first step to the first logits
  double ttft_ms = 0;     // from arrival to the first token
  double decode_ms = 0;   // from the first token to the last
  double total_ms = 0;
  double tok_per_s = 0;                // generated tokens over decode time, selection included
  std::optional<double> token_p50_ms;  // with `stats`
  std::optional<double> token_p95_ms;
  bool operator==(const Timing&) const = default;
};

// What was in force; enough to repeat the run.
struct RunOptions {
  bool raw = false;
  bool thinking = true;
  std::string dialect;
  uint32_t max_new = 0;
  double temperature = 0;
  double top_p = 1;
  uint32_t top_k = 0;
  double min_p = 0;
  uint32_t spec = 0;
  uint32_t spec_rosa = 0;
  uint64_t seed = 0;
  std::string precision;  // the one in use; never "auto"
  bool chunked_prefill = true;
  std::vector<std::string> stop;
  uint64_t timeout_ms = 0;
  ProcessingOptions processing;  // `ban` with the tokens of RunArgs::ban_text
  bool operator==(const RunOptions&) const = default;
};

// Whether the answer is the whole model's.
struct Trust {
  std::string precision;
  bool degraded = false;
  uint64_t shadow_tokens = 0;   // tokens that a stand-in served
  uint64_t failed_experts = 0;  // experts that could not be read
  std::string fingerprint;      // of the model file
  std::string model_path;
  std::string build_id;  // of the daemon
  bool operator==(const Trust&) const = default;
};

struct RunDone {
  std::string finish_reason;        // "stop", "length", "cancelled"
  std::string text;                 // the whole answer (or completion)
  std::string reasoning;            // text of the think channel
  std::string rest;                 // end of `text` that no chunk carried
  std::vector<int32_t> prompt_ids;  // without those that the run went on from
  std::vector<int32_t> ids;         // generated; without the stop id
  Usage usage;
  Timing timing;
  RunOptions options;
  Trust trust;
  std::vector<std::string> warnings;
  // Where the beginning of the prompt came from: "cold", it was read; "checkpoint", of the prefix
  // cache, with the bits of reading; "live", of a state that goes on as it was left, whose bits are
  // those of its own run and not always those of reading all tokens as one prompt.
  std::string prefix = "cold";
  std::optional<SessionStep> session;            // of a run in one
  std::optional<SavedPack> saved;                // with RunArgs::save
  std::optional<SpeculationReport> speculation;  // with RunArgs::spec or spec_rosa
  std::optional<StreamUse> stream;               // on a model whose experts stay in the file
  std::optional<ExpertTally> experts;            // with RunArgs::want_experts
  bool operator==(const RunDone&) const = default;
};

struct ScoreDone {
  std::vector<TextScore> texts;  // in the order of the request
  bool chunked_prefill = true;
  Timing timing;
  Trust trust;
  std::vector<std::string> warnings;
  bool operator==(const ScoreDone&) const = default;
};

struct CancelDone {
  bool found = false;  // false: the request had ended already
  bool operator==(const CancelDone&) const = default;
};

struct AckDone {  // never sent; keeps the order of Op
  bool operator==(const AckDone&) const = default;
};

struct StopDone {
  uint64_t pid = 0;
  bool socket_activated = false;  // a socket unit starts a new daemon with the next connection
  bool operator==(const StopDone&) const = default;
};

struct TokenizeDone {
  std::vector<int32_t> ids;
  std::vector<std::string> pieces;  // text or name of every token; ill-formed UTF-8 replaced
  uint64_t unk = 0;
  bool operator==(const TokenizeDone&) const = default;
};

struct DetokenizeDone {
  std::string text;
  bool operator==(const DetokenizeDone&) const = default;
};

// ---------------------------------------------------------------- replies

enum class ReplyType { kAccepted, kEvent, kChunk, kDone, kError };

using Body =
    std::variant<Accepted, Progress, TokenChunk, TensorChunk, RoutesChunk, ScoreChunk, LensChunk,
                 HiddenStatsChunk, Error, HelloDone, PingDone, StatusDone, ModelsDone, LoadDone,
                 UnloadDone, RunDone, CancelDone, AckDone, StopDone, TokenizeDone, DetokenizeDone,
                 VerifyDone, BuildDone, BenchDone, MetricsDone, JobsDone, JobStartDone,
                 JobAttachDone, JobShowDone, JobCancelDone, JobResumeDone, JobRemoveDone,
                 SessionsDone, SessionNewDone, SessionShowDone, SessionForkDone, SessionUndoDone,
                 SessionRenameDone, SessionRemoveDone, SessionSaveDone, SessionRestoreDone,
                 SessionDiffDone, AbsorbDone, PckInfoDone, PckCleanDone, ScoreDone, ExpertStatsDone,
                 ShadowDone, EvalDone, CompareDone>;

struct Reply {
  uint64_t id = 0;
  uint64_t seq = 0;
  Body body;
  bool operator==(const Reply&) const = default;
};

ReplyType TypeOf(const Body& body);

// ---------------------------------------------------------------- coding
// Thread-safe. Decoders never throw, never read outside `bytes`, and allocate no more than a small
// multiple of its size.

std::string EncodeRequest(const Request& request);
std::string EncodeReply(const Reply& reply);

// Why a request was refused, and the id to answer to (0 when the message has none to be read).
struct RefusedRequest {
  uint64_t id = 0;
  Error error;
};

// Decodes and checks a request: limits, UTF-8, version, op, every field's presence, type and range,
// and what fields together must satisfy. Errors: kBadRequest, kUnsupportedVersion.
tl::expected<Request, RefusedRequest> DecodeRequest(std::string_view bytes);

// The op of an open request, by its id; nothing for an id that the client does not know.
using OpOfRequest = std::function<std::optional<Op>(uint64_t id)>;
// Decodes a reply; its body's form depends on the op that it answers. Errors: kBadRequest.
Result<Reply> DecodeReply(std::string_view bytes, const OpOfRequest& op_of);
// For a client that has one request open.
Result<Reply> DecodeReply(std::string_view bytes, Op op);

// ---------------------------------------------------------------- the ops

struct FieldInfo {
  std::string name;
  std::string type;  // "text", "uint", "int", "number", "bool", "bytes", "list of int", ...
  bool required = false;
  std::string range;  // "0..100", "k3|nano-sft"; may be empty
  std::string doc;
};

struct OpInfo {
  Op op;
  std::string_view name;  // on the wire
  // Never waits behind work, in daemon or client: hello, ping, status, metrics, cancel, ack, stop,
  // unload, and what is about jobs but for starting and watching them.
  bool control = false;
  // Answered by `accepted` and kept alive by acks.
  bool streams = false;
  std::string_view doc;
};

// In the order of Op.
const OpInfo& InfoOf(Op op);
std::optional<Op> OpFromName(std::string_view name);
// Fields of an op's args, from the same declaration that decoding is driven by.
std::vector<FieldInfo> FieldsOf(Op op);

}  // namespace mk::protocol
