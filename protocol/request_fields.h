// The fields of every request: name on the wire, presence, range, meaning.

#pragma once

#include "protocol/field.h"
#include "protocol/messages.h"
#include "protocol/sampling_fields.h"
#include "protocol/stream_fields.h"

namespace mk::protocol {

inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr double kMaxTokens = 1 << 20;
inline constexpr double kMaxTokenId = (1u << 31) - 1.0;
inline constexpr size_t kMaxScoreTexts = 4096;
inline constexpr size_t kMaxMessages = size_t{1} << 16;
inline constexpr double kMaxLensTop = 100;
inline constexpr size_t kMaxLayers = 4096;
inline constexpr double kMaxTimeoutMs = 7.0 * 24 * 3600 * 1000;

inline constexpr Rule kPathRule = Rule{}.Bytes(kMaxPathBytes).Form(TextForm::kPath);
inline constexpr Rule kModelRule = Rule{}.Bytes(kMaxPathBytes).Form(TextForm::kModel);
// A path, or a name in the folder of packs.
inline constexpr Rule kPackRule = kModelRule;
inline constexpr Rule kDialectRule = Rule{}.OneOf("|k3|nano-sft|dsv4");
inline constexpr Rule kPrecisionRule = Rule{}.OneOf("auto|exact|bf16|q8");
inline constexpr Rule kPriorityRule = Rule{}.OneOf("interactive|background");
inline constexpr Rule kSessionRule = Rule{}.NotEmpty().Form(TextForm::kSession);
inline constexpr Rule kIdsRule =
    Rule{}.Range(0, kMaxTokenId).Items(static_cast<size_t>(kMaxTokens));

template <>
struct Schema<HelloArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("protocol_min", &HelloArgs::protocol_min, "lowest protocol version spoken"),
      Required("protocol_max", &HelloArgs::protocol_max, "highest protocol version spoken"),
      Required("build_id", &HelloArgs::build_id, "version and source state of the client",
               Rule{}.Bytes(128).Form(TextForm::kLine)),
      Optional("client", &HelloArgs::client, "name of the program, for status",
               Rule{}.Bytes(128).Form(TextForm::kLine)),
      Optional("pid", &HelloArgs::pid, "process id of the client"));
};

template <>
struct Schema<PingArgs> {
  static constexpr auto fields = std::make_tuple();
};
template <>
struct Schema<StatusArgs> {
  static constexpr auto fields = std::make_tuple();
};
template <>
struct Schema<ModelsArgs> {
  static constexpr auto fields = std::make_tuple();
};

template <>
struct Schema<ModelSelector> {
  static constexpr auto fields = std::make_tuple(
      Optional("model", &ModelSelector::model, "path, alias or name; empty: the default model",
               kModelRule),
      Optional("vocab", &ModelSelector::vocab,
               "vocabulary JSON; empty: the one that stands beside the model", kPathRule),
      Optional("rank_file", &ModelSelector::rank_file,
               "tiktoken ranks; empty: the ones that stand beside the model", kPathRule));
};

template <>
struct Schema<LoadArgs> {
  static constexpr auto fields = std::make_tuple(
      Inline(&LoadArgs::model),
      Optional("keep_alive_ms", &LoadArgs::keep_alive_ms,
               "unload after so long without use; -1: never", Rule{}.Range(-1, 1e15)),
      Optional("pin", &LoadArgs::pin, "keep it until it is unloaded, whoever needs the room"),
      Optional("precision", &LoadArgs::precision,
               "arithmetic to be ready for; auto: the daemon's setting", kPrecisionRule),
      Inline(&LoadArgs::stream));
};

template <>
struct Schema<UnloadArgs> {
  static constexpr auto fields = std::make_tuple(Optional(
      "model", &UnloadArgs::model, "path, alias or name; empty: every unused model", kModelRule));
};

template <>
struct Schema<ConversationMessage> {
  static constexpr auto fields = std::make_tuple(
      Required("role", &ConversationMessage::role, "who speaks",
               Rule{}.OneOf("system|user|assistant")),
      Required("content", &ConversationMessage::content, "what is said"),
      Optional("reasoning", &ConversationMessage::reasoning, "what was thought before"),
      Optional("ids", &ConversationMessage::ids, "the ids that an answer was generated as",
               kIdsRule));
};

template <>
struct Schema<RunArgs> {
  static constexpr auto fields = std::make_tuple(
      Inline(&RunArgs::model), Inline(&RunArgs::stream),
      Optional("prompt", &RunArgs::prompt, "text to continue or to answer; this, ids or messages",
               Rule{}.NotEmpty()),
      Optional("ids", &RunArgs::ids, "token ids to continue, taken as they are", kIdsRule),
      Optional("messages", &RunArgs::messages, "a conversation, whose next turn is generated",
               Rule{}.Items(kMaxMessages)),
      Optional("raw", &RunArgs::raw, "continue the prompt instead of answering it as a chat turn"),
      Optional("system", &RunArgs::system, "system message of the chat turn"),
      Optional("thinking", &RunArgs::thinking, "let the model think before it answers"),
      Optional("dialect", &RunArgs::dialect, "chat template; empty: the vocabulary's",
               kDialectRule),
      Optional("max_new", &RunArgs::max_new, "tokens to generate at most; 0: only read the prompt",
               Rule{}.Range(0, kMaxTokens)),
      Optional("temperature", &RunArgs::temperature, "0: always the likeliest token",
               Rule{}.Range(0, 100)),
      Optional("top_p", &RunArgs::top_p,
               "sample from the likeliest tokens of this total probability", Rule{}.Above(0, 1)),
      Optional("top_k", &RunArgs::top_k, "sample from so many likeliest tokens; 0: all",
               Rule{}.Range(0, kMaxTokens)),
      Optional("min_p", &RunArgs::min_p,
               "leave out tokens less likely than this part of the likeliest; 0: none",
               Rule{}.Range(0, 1)),
      Optional("spec", &RunArgs::spec,
               "longest draft from n-grams of the text; 0: none; the answer is the same",
               Rule{}.Range(0, kMaxSpec)),
      Optional("spec_rosa", &RunArgs::spec_rosa,
               "longest draft from a suffix automaton over the text; 0: none",
               Rule{}.Range(0, kMaxSpec)),
      Optional("spec_shadow", &RunArgs::spec_shadow,
               "longest draft with shadows of experts that are not in memory; 0: none; the answer "
               "is the same",
               Rule{}.Range(0, kMaxSpec)),
      Optional("stream_fallback", &RunArgs::stream_fallback,
               "take shadows for experts that are not in memory: degraded, but nothing waits"),
      Inline(&RunArgs::processing),
      Optional("ban_text", &RunArgs::ban_text,
               "texts of tokens that must not come; each must be one token",
               Rule{}.NotEmpty().Bytes(256).Items(1024)),
      Optional("seed", &RunArgs::seed, "seed of sampling; none: chosen by the daemon and told"),
      Optional("precision", &RunArgs::precision, "arithmetic; auto: the daemon's setting",
               kPrecisionRule),
      Optional("chunked_prefill", &RunArgs::chunked_prefill,
               "read the prompt in blocks of 64 tokens; false: token by token"),
      Optional("prefix_cache", &RunArgs::prefix_cache,
               "use and keep states of prompts; the answer is the same without"),
      Optional("memory", &RunArgs::memory,
               "memory pack to go on from: path, or name in the state folder", kPackRule),
      Optional("save", &RunArgs::save, "memory pack to make of what the run leaves", kPackRule),
      Optional("save_format", &RunArgs::save_format,
               "2, or 1 for the format of the reference engine", Rule{}.Range(1, 2)),
      Optional("stop", &RunArgs::stop, "texts that end the answer",
               Rule{}.NotEmpty().Bytes(256).Items(16)),
      Optional("timeout_ms", &RunArgs::timeout_ms, "give up after so long; 0: never",
               Rule{}.Range(0, kMaxTimeoutMs)),
      Optional("priority", &RunArgs::priority,
               "interactive, or background: only what the others leave", kPriorityRule),
      Optional("logprobs", &RunArgs::logprobs,
               "send the log probability of every token, and so many likeliest ones in its place",
               Rule{}.Range(0, kMaxLogprobs)),
      Optional("want_logits", &RunArgs::want_logits,
               "send a row of logits after the prompt and after every token"),
      Optional("want_hidden", &RunArgs::want_hidden,
               "send the hidden state after every layer, for every token"),
      Optional("want_routes", &RunArgs::want_routes,
               "send the experts that every layer picked, for every token"),
      Optional("lens", &RunArgs::lens,
               "logit lens: after the last token of the prompt, after those of the answer too, or "
               "after all; empty: none",
               Rule{}.OneOf("|last|answer|all")),
      Optional("lens_top", &RunArgs::lens_top, "tokens that the lens shows per layer",
               Rule{}.Range(1, kMaxLensTop)),
      Optional("lens_layers", &RunArgs::lens_layers, "layers that the lens looks after; none: all",
               Rule{}.Items(kMaxLayers)),
      Optional("want_hidden_stats", &RunArgs::want_hidden_stats,
               "send the size of the hidden state after every layer, at the end of the prompt"),
      Optional("want_experts", &RunArgs::want_experts, "tell how often every expert was picked"),
      Optional("stats", &RunArgs::stats, "send percentiles of the time per token"),
      Optional("window", &RunArgs::window, "replies that may be unacknowledged",
               Rule{}.Range(1, kMaxWindow)),
      Optional("session", &RunArgs::session, "session to go on with; empty: none",
               Rule{}.Form(TextForm::kSession)),
      Optional("session_undo", &RunArgs::session_undo,
               "last turns of the session whose place this one takes"));
};

template <>
struct Schema<CancelArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("request", &CancelArgs::request, "id of the request of this connection to end"));
};

template <>
struct Schema<AckArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("request", &AckArgs::request, "id of the request"),
      Required("seq", &AckArgs::seq, "everything up to and including this reply has been shown"));
};

template <>
struct Schema<StopArgs> {
  static constexpr auto fields = std::make_tuple(Optional("grace_ms", &StopArgs::grace_ms,
                                                          "running requests may finish for so long",
                                                          Rule{}.Range(0, kMaxTimeoutMs)));
};

template <>
struct Schema<TokenizeArgs> {
  static constexpr auto fields = std::make_tuple(
      Inline(&TokenizeArgs::model), Required("text", &TokenizeArgs::text, "text to split"),
      Optional("chat", &TokenizeArgs::chat, "as the user's message of a chat turn"),
      Optional("plain", &TokenizeArgs::plain, "without the id that begins a text"),
      Optional("system", &TokenizeArgs::system, "system message of the chat turn"),
      Optional("thinking", &TokenizeArgs::thinking, "with a think channel"),
      Optional("dialect", &TokenizeArgs::dialect, "chat template; empty: the vocabulary's",
               kDialectRule));
};

template <>
struct Schema<ScoreItem> {
  static constexpr auto fields = std::make_tuple(
      Optional("text", &ScoreItem::text, "text to score; this or ids", Rule{}.NotEmpty()),
      Optional("context", &ScoreItem::context, "text before it, which is not scored"),
      Optional("ids", &ScoreItem::ids, "token ids to score, taken as they are", kIdsRule),
      Optional("context_ids", &ScoreItem::context_ids, "ids before them, which are not scored",
               kIdsRule));
};

template <>
struct Schema<ScoreArgs> {
  static constexpr auto fields = std::make_tuple(
      Inline(&ScoreArgs::model),
      Required("texts", &ScoreArgs::texts, "what is to be scored", Rule{}.Items(kMaxScoreTexts)),
      Optional("plain", &ScoreArgs::plain, "texts without the id that begins one"),
      Optional("tokens", &ScoreArgs::tokens, "send every token and its log probability"),
      Optional("precision", &ScoreArgs::precision, "arithmetic; auto: the daemon's setting",
               kPrecisionRule),
      Optional("chunked_prefill", &ScoreArgs::chunked_prefill,
               "read in blocks of 64 tokens; false: token by token"),
      Inline(&ScoreArgs::stream),
      Optional("stream_fallback", &ScoreArgs::stream_fallback,
               "take shadows for experts that are not in memory: degraded, but nothing waits"),
      Optional("timeout_ms", &ScoreArgs::timeout_ms, "give up after so long; 0: never",
               Rule{}.Range(0, kMaxTimeoutMs)),
      Optional("priority", &ScoreArgs::priority,
               "interactive, or background: only what the others leave", kPriorityRule),
      Optional("window", &ScoreArgs::window, "replies that may be unacknowledged",
               Rule{}.Range(1, kMaxWindow)));
};

template <>
struct Schema<DetokenizeArgs> {
  static constexpr auto fields =
      std::make_tuple(Inline(&DetokenizeArgs::model),
                      Required("ids", &DetokenizeArgs::ids, "token ids to spell", kIdsRule));
};

template <>
struct Schema<VerifyArgs> {
  static constexpr auto fields = std::make_tuple(Optional(
      "model", &VerifyArgs::model, "path, alias or name; empty: the default model", kModelRule));
};

template <>
struct Schema<BuildArgs> {
  static constexpr auto fields = std::make_tuple(
      Optional("arch", &BuildArgs::arch, "architecture",
               Rule{}.NotEmpty().Bytes(64).Form(TextForm::kLine)),
      Optional("preset", &BuildArgs::preset, "size: tiny, nano, micro",
               Rule{}.NotEmpty().Bytes(64).Form(TextForm::kLine)),
      Required("out", &BuildArgs::out, "path of the file to make",
               Rule{}.NotEmpty().Bytes(kMaxPathBytes).Form(TextForm::kPath)),
      Optional("seed", &BuildArgs::seed, "seed of the values"),
      Optional("set", &BuildArgs::set, "key=value: another dimension or gain than the preset's",
               Rule{}.NotEmpty().Bytes(1024).Items(256)),
      Optional("expert_align", &BuildArgs::expert_align, "alignment of expert matrices in bytes",
               Rule{}.OneOf("auto|64|4096")),
      Optional("threads", &BuildArgs::threads, "threads to use; 0: the daemon's setting",
               Rule{}.Range(0, 1024)),
      Optional("dry_run", &BuildArgs::dry_run, "tell the sizes, write nothing"),
      Optional("force", &BuildArgs::force, "replace a file that exists"));
};

template <>
struct Schema<BenchArgs> {
  static constexpr auto fields = std::make_tuple(
      Inline(&BenchArgs::model),
      Optional("precision", &BenchArgs::precision, "arithmetic; auto: the daemon's setting",
               kPrecisionRule),
      Optional("quick", &BenchArgs::quick, "fewer points, measured for a shorter time"),
      Optional("threads", &BenchArgs::threads, "threads to use; 0: the daemon's setting",
               Rule{}.Range(0, 1024)));
};

template <>
struct Schema<AbsorbArgs> {
  static constexpr auto fields = std::make_tuple(
      Inline(&AbsorbArgs::model),
      Required("text", &AbsorbArgs::text, "path of the file to read",
               Rule{}.NotEmpty().Bytes(kMaxPathBytes).Form(TextForm::kPath)),
      Optional("spooled", &AbsorbArgs::spooled,
               "the file lies in the state folder and is removed in the end"),
      Required("save", &AbsorbArgs::save, "memory pack to make", kPackRule.NotEmpty()),
      Optional("save_format", &AbsorbArgs::save_format,
               "2, or 1 for the format of the reference engine", Rule{}.Range(1, 2)),
      Optional("memory", &AbsorbArgs::memory, "memory pack that the text comes on top of",
               kPackRule),
      Optional("precision", &AbsorbArgs::precision, "arithmetic; auto: the daemon's setting",
               kPrecisionRule),
      Optional("chunked_prefill", &AbsorbArgs::chunked_prefill,
               "read in blocks of 64 tokens; false: token by token"));
};

inline constexpr size_t kMaxEvalFiles = 256;
inline constexpr Rule kEvalFileRule = kModelRule.NotEmpty().Items(kMaxEvalFiles);

template <>
struct Schema<EvalItems> {
  static constexpr auto fields = std::make_tuple(
      Optional("tasks", &EvalItems::tasks, "tasks: paths, or names of bundled ones", kEvalFileRule),
      Optional("texts", &EvalItems::texts, "texts: paths, or names of bundled ones", kEvalFileRule),
      Optional("limit", &EvalItems::limit, "of each task so many probes; 0: all"),
      Optional("chunked_prefill", &EvalItems::chunked_prefill,
               "read in blocks of 64 tokens; false: token by token"),
      Optional("stream", &EvalItems::stream,
               "experts of models that are not loaded yet: on, they stay in the file; off, all are "
               "read; auto, as the memory allows; empty: the daemon's setting",
               Rule{}.OneOf("|auto|on|off")),
      Optional("stream_memory", &EvalItems::stream_memory,
               "bytes for experts that stay in the file; 0: what is free"),
      Optional("stream_fallback", &EvalItems::stream_fallback,
               "take shadows for experts that are not in memory: degraded; not of compare"));
};

template <>
struct Schema<EvalArgs> {
  static constexpr auto fields =
      std::make_tuple(Inline(&EvalArgs::model), Inline(&EvalArgs::items),
                      Optional("precision", &EvalArgs::precision,
                               "arithmetic; auto: the daemon's setting", kPrecisionRule));
};

template <>
struct Schema<CompareArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("a", &CompareArgs::a, "the model that is compared with"),
      Required("b", &CompareArgs::b, "the model that is judged"), Inline(&CompareArgs::items),
      Optional("precision", &CompareArgs::precision, "arithmetic of a; auto: the daemon's setting",
               kPrecisionRule),
      Optional("precision_b", &CompareArgs::precision_b,
               "arithmetic of b; auto: the daemon's setting", kPrecisionRule),
      Optional("seed", &CompareArgs::seed, "seed of the bootstrap"),
      Optional("resamples", &CompareArgs::resamples, "resamples of the bootstrap",
               Rule{}.Range(100, 1'000'000)),
      Optional("interval", &CompareArgs::interval, "form of the bootstrap's intervals",
               Rule{}.OneOf("bca|percentile")));
};

template <>
struct Schema<ShadowArgs> {
  static constexpr auto fields = std::make_tuple(
      Optional("model", &ShadowArgs::model, "path, alias or name; empty: the default model",
               kModelRule),
      Optional("out", &ShadowArgs::out, "path of the file to make; empty: beside the model",
               Rule{}.Bytes(kMaxPathBytes).Form(TextForm::kPath)),
      Optional("version", &ShadowArgs::version,
               "of the format: 2, or 1 for that of the reference engine", Rule{}.Range(1, 2)),
      Optional("stages", &ShadowArgs::stages, "bytes per sixteen weights; 1 in version 1",
               Rule{}.Range(1, 2)),
      Optional("threads", &ShadowArgs::threads, "threads to use; 0: the daemon's setting",
               Rule{}.Range(0, 1024)));
};

template <>
struct Schema<MetricsArgs> {
  static constexpr auto fields = std::make_tuple(Optional("form", &MetricsArgs::form,
                                                          "Prometheus text, or families of samples",
                                                          Rule{}.OneOf("text|families")));
};

inline constexpr Rule kJobIdRule = Rule{}.NotEmpty().Bytes(64).Form(TextForm::kLine);

template <>
struct Schema<JobsArgs> {
  static constexpr auto fields = std::make_tuple();
};

template <>
struct Schema<JobSpec> {
  static constexpr auto fields =
      std::make_tuple(Optional("verify", &JobSpec::verify, "the fields of the op verify"),
                      Optional("build", &JobSpec::build, "the fields of the op build"),
                      Optional("bench", &JobSpec::bench, "the fields of the op bench"),
                      Optional("absorb", &JobSpec::absorb, "the fields of the op absorb"),
                      Optional("shadow", &JobSpec::shadow, "the fields of the op shadow"),
                      Optional("eval", &JobSpec::eval, "the fields of the op eval"),
                      Optional("compare", &JobSpec::compare, "the fields of the op compare"));
};

template <>
struct Schema<JobStartArgs> {
  static constexpr auto fields = std::make_tuple(Inline(&JobStartArgs::spec));
};

template <>
struct Schema<JobAttachArgs> {
  static constexpr auto fields =
      std::make_tuple(Required("id", &JobAttachArgs::id, "job to watch to its end", kJobIdRule));
};

template <>
struct Schema<JobShowArgs> {
  static constexpr auto fields =
      std::make_tuple(Required("id", &JobShowArgs::id, "job to show", kJobIdRule));
};

template <>
struct Schema<JobCancelArgs> {
  static constexpr auto fields =
      std::make_tuple(Required("id", &JobCancelArgs::id, "job to end", kJobIdRule));
};

template <>
struct Schema<JobResumeArgs> {
  static constexpr auto fields = std::make_tuple(Required(
      "id", &JobResumeArgs::id, "job that was interrupted, failed or cancelled", kJobIdRule));
};

template <>
struct Schema<JobRemoveArgs> {
  static constexpr auto fields = std::make_tuple(
      Optional("ids", &JobRemoveArgs::ids, "jobs that have ended", kJobIdRule.Items(1024)),
      Optional("ended", &JobRemoveArgs::ended, "all that have ended"));
};

template <>
struct Schema<SessionsArgs> {
  static constexpr auto fields = std::make_tuple();
};

template <>
struct Schema<SessionNewArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &SessionNewArgs::name, "name of the new session", kSessionRule),
      Inline(&SessionNewArgs::model),
      Optional("precision", &SessionNewArgs::precision, "arithmetic; auto: that of the first run",
               kPrecisionRule),
      Optional("system", &SessionNewArgs::system, "system message; makes it a conversation"));
};

template <>
struct Schema<SessionShowArgs> {
  static constexpr auto fields =
      std::make_tuple(Required("name", &SessionShowArgs::name, "session to show", kSessionRule));
};

template <>
struct Schema<SessionForkArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("from", &SessionForkArgs::from, "session to copy", kSessionRule),
      Required("name", &SessionForkArgs::name, "name of the copy", kSessionRule),
      Optional("turns", &SessionForkArgs::turns, "turns to copy, from the first; none: all"));
};

template <>
struct Schema<SessionUndoArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &SessionUndoArgs::name, "session to take turns back from", kSessionRule),
      Optional("turns", &SessionUndoArgs::turns, "turns to take back; none: all"));
};

template <>
struct Schema<SessionRenameArgs> {
  static constexpr auto fields =
      std::make_tuple(Required("from", &SessionRenameArgs::from, "session to rename", kSessionRule),
                      Required("name", &SessionRenameArgs::name, "its new name", kSessionRule));
};

template <>
struct Schema<SessionRemoveArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("names", &SessionRemoveArgs::names, "sessions to remove", kSessionRule.Items(1024)));
};

template <>
struct Schema<SessionSaveArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &SessionSaveArgs::name, "session whose state is saved", kSessionRule),
      Optional("pack", &SessionSaveArgs::pack,
               "path, or name in the folder of packs; empty: the session's name", kPackRule),
      Optional("replace", &SessionSaveArgs::replace, "replace a pack that exists"));
};

template <>
struct Schema<SessionRestoreArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &SessionRestoreArgs::name, "name of the new session", kSessionRule),
      Required("pack", &SessionRestoreArgs::pack, "path, or name in the folder of packs",
               kPackRule.NotEmpty()),
      Inline(&SessionRestoreArgs::model));
};

template <>
struct Schema<SessionDiffArgs> {
  static constexpr auto fields = std::make_tuple(
      Required("a", &SessionDiffArgs::a, "session", kSessionRule),
      Required("b", &SessionDiffArgs::b, "session to compare it with", kSessionRule));
};

template <>
struct Schema<PckInfoArgs> {
  static constexpr auto fields = std::make_tuple(
      Optional("model", &PckInfoArgs::model,
               "path, alias, name or digits of the fingerprint; empty: all models", kModelRule));
};

template <>
struct Schema<ExpertStatsArgs> {
  static constexpr auto fields =
      std::make_tuple(Optional("model", &ExpertStatsArgs::model,
                               "path, alias or name; empty: all that are loaded", kModelRule),
                      Optional("reset", &ExpertStatsArgs::reset, "begin to count anew"));
};

template <>
struct Schema<PckCleanArgs> {
  static constexpr auto fields = std::make_tuple(
      Optional("model", &PckCleanArgs::model,
               "path, alias, name or digits of the fingerprint; empty: all models", kModelRule));
};

}  // namespace mk::protocol
