// The fields of every reply: name on the wire and presence. What they mean is told at the structs.
//
// A field that a later version of the protocol adds is Optional, so that replies of older daemons
// stay readable.

#pragma once

#include "protocol/field.h"
#include "protocol/job_fields.h"
#include "protocol/look_fields.h"
#include "protocol/messages.h"
#include "protocol/metrics_fields.h"
#include "protocol/prefix_fields.h"
#include "protocol/sampling_fields.h"
#include "protocol/score_fields.h"
#include "protocol/session_fields.h"
#include "protocol/speculation_fields.h"
#include "protocol/stream_fields.h"

namespace mk::protocol {

template <>
struct Schema<Accepted> {
  static constexpr auto fields =
      std::make_tuple(Required("queue_position", &Accepted::queue_position));
};

template <>
struct Schema<Progress> {
  static constexpr auto fields =
      std::make_tuple(Required("stage", &Progress::stage), Required("done", &Progress::done),
                      Required("total", &Progress::total), Required("unit", &Progress::unit));
};

template <>
struct Schema<TokenChunk> {
  static constexpr auto fields = std::make_tuple(
      Required("index", &TokenChunk::index), Required("id", &TokenChunk::id),
      Required("text", &TokenChunk::text), Required("channel", &TokenChunk::channel),
      Optional("logprob", &TokenChunk::logprob), Optional("top", &TokenChunk::top));
};

template <>
struct Schema<TensorChunk> {
  static constexpr auto fields = std::make_tuple(
      Required("kind", &TensorChunk::kind), Required("position", &TensorChunk::position),
      Required("row_bytes", &TensorChunk::row_bytes), Required("offset", &TensorChunk::offset),
      Required("data", &TensorChunk::data, Rule{}.Binary()));
};

template <>
struct Schema<RouterPick> {
  static constexpr auto fields = std::make_tuple(Required("layer", &RouterPick::layer),
                                                 Required("experts", &RouterPick::experts),
                                                 Required("weights", &RouterPick::weights));
};

template <>
struct Schema<IndexPick> {
  static constexpr auto fields =
      std::make_tuple(Required("layer", &IndexPick::layer), Required("rows", &IndexPick::rows),
                      Required("scores", &IndexPick::scores));
};

template <>
struct Schema<CompressedRow> {
  static constexpr auto fields = std::make_tuple(Required("layer", &CompressedRow::layer),
                                                 Required("row", &CompressedRow::row));
};

template <>
struct Schema<RoutesChunk> {
  static constexpr auto fields = std::make_tuple(
      Required("position", &RoutesChunk::position), Required("layers", &RoutesChunk::layers),
      Optional("indexed", &RoutesChunk::indexed), Optional("compressed", &RoutesChunk::compressed));
};

template <>
struct Schema<HelloDone> {
  static constexpr auto fields = std::make_tuple(
      Required("protocol", &HelloDone::protocol),
      Required("protocol_min", &HelloDone::protocol_min),
      Required("protocol_max", &HelloDone::protocol_max), Required("version", &HelloDone::version),
      Required("build_id", &HelloDone::build_id), Required("pid", &HelloDone::pid));
};

template <>
struct Schema<PingDone> {
  static constexpr auto fields =
      std::make_tuple(Required("pid", &PingDone::pid), Required("uptime_ms", &PingDone::uptime_ms));
};

template <>
struct Schema<ModelStatus> {
  static constexpr auto fields = std::make_tuple(
      Required("path", &ModelStatus::path), Required("architecture", &ModelStatus::architecture),
      Required("fingerprint", &ModelStatus::fingerprint), Required("state", &ModelStatus::state),
      Required("progress", &ModelStatus::progress),
      Required("file_bytes", &ModelStatus::file_bytes),
      Required("memory_bytes", &ModelStatus::memory_bytes), Required("users", &ModelStatus::users),
      Required("keep_alive_ms", &ModelStatus::keep_alive_ms),
      Required("idle_ms", &ModelStatus::idle_ms), Optional("precisions", &ModelStatus::precisions),
      Optional("preparing", &ModelStatus::preparing),
      Optional("chat_dialect", &ModelStatus::chat_dialect),
      Optional("pinned", &ModelStatus::pinned), Optional("expires_ms", &ModelStatus::expires_ms),
      Optional("memory", &ModelStatus::memory), Optional("holders", &ModelStatus::holders),
      Optional("stream", &ModelStatus::stream));
};

template <>
struct Schema<RequestStatus> {
  static constexpr auto fields = std::make_tuple(
      Required("client", &RequestStatus::client), Required("id", &RequestStatus::id),
      Required("op", &RequestStatus::op), Required("model", &RequestStatus::model),
      Required("phase", &RequestStatus::phase),
      Required("prompt_done", &RequestStatus::prompt_done),
      Required("prompt_total", &RequestStatus::prompt_total),
      Required("generated", &RequestStatus::generated),
      Required("tokens_per_second", &RequestStatus::tokens_per_second),
      Required("age_ms", &RequestStatus::age_ms),
      Required("state_bytes", &RequestStatus::state_bytes),
      Optional("priority", &RequestStatus::priority));
};

template <>
struct Schema<LatencyStatus> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &LatencyStatus::name), Required("count", &LatencyStatus::count),
      Required("mean_ms", &LatencyStatus::mean_ms), Required("p50_ms", &LatencyStatus::p50_ms),
      Required("p90_ms", &LatencyStatus::p90_ms), Required("p99_ms", &LatencyStatus::p99_ms));
};

template <>
struct Schema<StatusDone> {
  static constexpr auto fields = std::make_tuple(
      Required("version", &StatusDone::version), Required("build_id", &StatusDone::build_id),
      Required("pid", &StatusDone::pid), Required("uptime_ms", &StatusDone::uptime_ms),
      Required("socket", &StatusDone::socket), Required("log", &StatusDone::log),
      Required("state_directory", &StatusDone::state_directory),
      Required("stopping", &StatusDone::stopping), Required("threads", &StatusDone::threads),
      Required("max_batch", &StatusDone::max_batch),
      Required("connections", &StatusDone::connections), Required("memory", &StatusDone::memory),
      Required("counters", &StatusDone::counters), Required("models", &StatusDone::models),
      Required("requests", &StatusDone::requests), Optional("precision", &StatusDone::precision),
      Optional("latency", &StatusDone::latency),
      Optional("journal_unit", &StatusDone::journal_unit), Optional("jobs", &StatusDone::jobs),
      Optional("jobs_trouble", &StatusDone::jobs_trouble));
};

template <>
struct Schema<ModelEntry> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &ModelEntry::name), Required("path", &ModelEntry::path),
      Required("origin", &ModelEntry::origin), Required("is_default", &ModelEntry::is_default),
      Required("loaded", &ModelEntry::loaded), Required("file_bytes", &ModelEntry::file_bytes),
      Required("architecture", &ModelEntry::architecture), Required("error", &ModelEntry::error),
      Optional("precisions", &ModelEntry::precisions));
};

template <>
struct Schema<ModelsDone> {
  static constexpr auto fields = std::make_tuple(Required("models", &ModelsDone::models));
};

template <>
struct Schema<LoadDone> {
  static constexpr auto fields = std::make_tuple(
      Required("model", &LoadDone::model), Required("load_ms", &LoadDone::load_ms),
      Required("was_loaded", &LoadDone::was_loaded), Required("warnings", &LoadDone::warnings),
      Optional("precision", &LoadDone::precision),
      Optional("spine_cached", &LoadDone::spine_cached));
};

template <>
struct Schema<UnloadDone> {
  static constexpr auto fields = std::make_tuple(Required("unloaded", &UnloadDone::unloaded));
};

template <>
struct Schema<Usage> {
  static constexpr auto fields =
      std::make_tuple(Required("prompt_tokens", &Usage::prompt_tokens),
                      Required("completion_tokens", &Usage::completion_tokens),
                      Required("unk", &Usage::unk), Optional("cached", &Usage::cached));
};

template <>
struct Schema<Timing> {
  static constexpr auto fields = std::make_tuple(
      Required("queue_ms", &Timing::queue_ms), Required("load_ms", &Timing::load_ms),
      Required("prefill_ms", &Timing::prefill_ms), Required("ttft_ms", &Timing::ttft_ms),
      Required("decode_ms", &Timing::decode_ms), Required("total_ms", &Timing::total_ms),
      Required("tok_per_s", &Timing::tok_per_s), Optional("token_p50_ms", &Timing::token_p50_ms),
      Optional("token_p95_ms", &Timing::token_p95_ms));
};

template <>
struct Schema<RunOptions> {
  static constexpr auto fields = std::make_tuple(
      Required("raw", &RunOptions::raw), Required("thinking", &RunOptions::thinking),
      Required("dialect", &RunOptions::dialect), Required("max_new", &RunOptions::max_new),
      Required("temperature", &RunOptions::temperature), Required("top_p", &RunOptions::top_p),
      Required("top_k", &RunOptions::top_k), Required("min_p", &RunOptions::min_p),
      Optional("spec", &RunOptions::spec), Optional("spec_rosa", &RunOptions::spec_rosa),
      Required("seed", &RunOptions::seed), Required("precision", &RunOptions::precision),
      Required("chunked_prefill", &RunOptions::chunked_prefill),
      Required("stop", &RunOptions::stop), Required("timeout_ms", &RunOptions::timeout_ms),
      Inline(&RunOptions::processing));
};

template <>
struct Schema<Trust> {
  static constexpr auto fields = std::make_tuple(
      Required("precision", &Trust::precision), Required("degraded", &Trust::degraded),
      Required("shadow_tokens", &Trust::shadow_tokens),
      Required("failed_experts", &Trust::failed_experts),
      Required("fingerprint", &Trust::fingerprint), Required("model_path", &Trust::model_path),
      Required("build_id", &Trust::build_id));
};

template <>
struct Schema<RunDone> {
  static constexpr auto fields = std::make_tuple(
      Required("finish_reason", &RunDone::finish_reason), Required("text", &RunDone::text),
      Required("reasoning", &RunDone::reasoning), Required("rest", &RunDone::rest),
      Required("prompt_ids", &RunDone::prompt_ids), Required("ids", &RunDone::ids),
      Required("usage", &RunDone::usage), Required("timing", &RunDone::timing),
      Required("options", &RunDone::options), Required("trust", &RunDone::trust),
      Required("warnings", &RunDone::warnings), Optional("prefix", &RunDone::prefix),
      Optional("session", &RunDone::session), Optional("saved", &RunDone::saved),
      Optional("speculation", &RunDone::speculation), Optional("stream", &RunDone::stream),
      Optional("experts", &RunDone::experts));
};

template <>
struct Schema<ScoreDone> {
  static constexpr auto fields =
      std::make_tuple(Required("texts", &ScoreDone::texts),
                      Required("chunked_prefill", &ScoreDone::chunked_prefill),
                      Required("timing", &ScoreDone::timing), Required("trust", &ScoreDone::trust),
                      Required("warnings", &ScoreDone::warnings));
};

template <>
struct Schema<CancelDone> {
  static constexpr auto fields = std::make_tuple(Required("found", &CancelDone::found));
};

template <>
struct Schema<AckDone> {
  static constexpr auto fields = std::make_tuple();
};

template <>
struct Schema<StopDone> {
  static constexpr auto fields = std::make_tuple(
      Required("pid", &StopDone::pid), Required("socket_activated", &StopDone::socket_activated));
};

template <>
struct Schema<TokenizeDone> {
  static constexpr auto fields = std::make_tuple(Required("ids", &TokenizeDone::ids),
                                                 Required("pieces", &TokenizeDone::pieces),
                                                 Required("unk", &TokenizeDone::unk));
};

template <>
struct Schema<DetokenizeDone> {
  static constexpr auto fields = std::make_tuple(Required("text", &DetokenizeDone::text));
};

}  // namespace mk::protocol
