// The fields of eval_messages.h but for those of requests, which have their place in
// request_fields.h. Included by job_fields.h.

#pragma once

#include "protocol/eval_messages.h"
#include "protocol/field.h"

namespace mk::protocol {

template <>
struct Schema<EvaluatedModel> {
  static constexpr auto fields = std::make_tuple(
      Required("path", &EvaluatedModel::path),
      Required("architecture", &EvaluatedModel::architecture),
      Required("fingerprint", &EvaluatedModel::fingerprint),
      Required("precision", &EvaluatedModel::precision),
      Required("file_bytes", &EvaluatedModel::file_bytes),
      Required("parameters", &EvaluatedModel::parameters),
      Required("vocab", &EvaluatedModel::vocab), Required("degraded", &EvaluatedModel::degraded),
      Required("shadow_tokens", &EvaluatedModel::shadow_tokens),
      Required("failed_experts", &EvaluatedModel::failed_experts));
};

template <>
struct Schema<Proportion> {
  static constexpr auto fields =
      std::make_tuple(Required("hits", &Proportion::hits), Required("count", &Proportion::count),
                      Required("share", &Proportion::share), Required("low", &Proportion::low),
                      Required("high", &Proportion::high));
};

template <>
struct Schema<NamedProportion> {
  static constexpr auto fields = std::make_tuple(Required("name", &NamedProportion::name),
                                                 Required("accuracy", &NamedProportion::accuracy));
};

template <>
struct Schema<TextCard> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &TextCard::name), Required("sha256", &TextCard::sha256),
      Required("documents", &TextCard::documents), Required("bytes", &TextCard::bytes),
      Required("tokens", &TextCard::tokens), Required("unk", &TextCard::unk),
      Required("hidden", &TextCard::hidden), Required("nats", &TextCard::nats),
      Required("perplexity", &TextCard::perplexity),
      Required("perplexity_per_byte", &TextCard::perplexity_per_byte),
      Required("bits_per_byte", &TextCard::bits_per_byte), Required("top1", &TextCard::top1),
      Required("top5", &TextCard::top5));
};

template <>
struct Schema<ProbeOutcome> {
  static constexpr auto fields = std::make_tuple(
      Required("id", &ProbeOutcome::id), Required("category", &ProbeOutcome::category),
      Required("score", &ProbeOutcome::score), Required("picks", &ProbeOutcome::picks),
      Optional("margin", &ProbeOutcome::margin));
};

template <>
struct Schema<TaskCard> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &TaskCard::name), Required("sha256", &TaskCard::sha256),
      Required("probes", &TaskCard::probes), Required("phrasings", &TaskCard::phrasings),
      Required("accuracy", &TaskCard::accuracy), Optional("acc", &TaskCard::acc),
      Optional("acc_norm", &TaskCard::acc_norm), Required("chance", &TaskCard::chance),
      Required("categories", &TaskCard::categories),
      Required("by_phrasing", &TaskCard::by_phrasing), Required("outcomes", &TaskCard::outcomes));
};

template <>
struct Schema<EvalDone> {
  static constexpr auto fields = std::make_tuple(
      Required("model", &EvalDone::model), Required("chunked_prefill", &EvalDone::chunked_prefill),
      Required("texts", &EvalDone::texts), Required("tasks", &EvalDone::tasks),
      Required("warnings", &EvalDone::warnings));
};

template <>
struct Schema<PairedDifference> {
  static constexpr auto fields = std::make_tuple(
      Required("a", &PairedDifference::a), Required("b", &PairedDifference::b),
      Required("difference", &PairedDifference::difference),
      Optional("low", &PairedDifference::low), Optional("high", &PairedDifference::high),
      Required("interval", &PairedDifference::interval),
      Required("units", &PairedDifference::units), Required("better", &PairedDifference::better),
      Required("worse", &PairedDifference::worse), Required("ties", &PairedDifference::ties),
      Required("sign_p", &PairedDifference::sign_p),
      Required("detectable", &PairedDifference::detectable),
      Required("verdict", &PairedDifference::verdict));
};

template <>
struct Schema<ComparedDocument> {
  static constexpr auto fields = std::make_tuple(
      Required("id", &ComparedDocument::id), Required("bytes", &ComparedDocument::bytes),
      Required("bits_a", &ComparedDocument::bits_a), Required("bits_b", &ComparedDocument::bits_b));
};

template <>
struct Schema<ComparedText> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &ComparedText::name), Required("sha256", &ComparedText::sha256),
      Required("a", &ComparedText::a), Required("b", &ComparedText::b),
      Required("bits_per_byte", &ComparedText::bits_per_byte),
      Required("documents", &ComparedText::documents));
};

template <>
struct Schema<ComparedTask> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &ComparedTask::name), Required("sha256", &ComparedTask::sha256),
      Required("a", &ComparedTask::a), Required("b", &ComparedTask::b),
      Required("accuracy", &ComparedTask::accuracy));
};

template <>
struct Schema<PositionMean> {
  static constexpr auto fields =
      std::make_tuple(Required("mean", &PositionMean::mean), Optional("low", &PositionMean::low),
                      Optional("high", &PositionMean::high));
};

template <>
struct Schema<LayerOverlap> {
  static constexpr auto fields = std::make_tuple(Required("layer", &LayerOverlap::layer),
                                                 Required("overlap", &LayerOverlap::overlap));
};

template <>
struct Schema<Fidelity> {
  static constexpr auto fields = std::make_tuple(
      Required("positions", &Fidelity::positions), Required("top1", &Fidelity::top1),
      Required("top5", &Fidelity::top5), Required("kl", &Fidelity::kl),
      Required("kl_median", &Fidelity::kl_median), Required("kl_p95", &Fidelity::kl_p95),
      Required("kl_p99", &Fidelity::kl_p99), Required("kl_max", &Fidelity::kl_max),
      Required("routers", &Fidelity::routers));
};

template <>
struct Schema<CompareDone> {
  static constexpr auto fields = std::make_tuple(
      Required("a", &CompareDone::a), Required("b", &CompareDone::b),
      Required("chunked_prefill", &CompareDone::chunked_prefill),
      Required("seed", &CompareDone::seed), Required("resamples", &CompareDone::resamples),
      Required("interval", &CompareDone::interval), Required("texts", &CompareDone::texts),
      Required("tasks", &CompareDone::tasks), Optional("fidelity", &CompareDone::fidelity),
      Required("no_fidelity", &CompareDone::no_fidelity),
      Required("verdict", &CompareDone::verdict), Required("warnings", &CompareDone::warnings));
};

}  // namespace mk::protocol
