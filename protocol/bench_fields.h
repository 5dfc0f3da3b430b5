// The fields of a benchmark's answer. Included by reply_fields.h.

#pragma once

#include "protocol/bench_messages.h"
#include "protocol/field.h"

namespace mk::protocol {

template <>
struct Schema<BenchCeilings> {
  static constexpr auto fields =
      std::make_tuple(Required("threads", &BenchCeilings::threads),
                      Required("read_gb_per_s", &BenchCeilings::read_gb_per_s),
                      Required("cache_read_gb_per_s", &BenchCeilings::cache_read_gb_per_s),
                      Required("fma_gflop_per_s", &BenchCeilings::fma_gflop_per_s),
                      Required("int8_gop_per_s", &BenchCeilings::int8_gop_per_s));
};

template <>
struct Schema<BenchRoof> {
  static constexpr auto fields =
      std::make_tuple(Required("spine_bytes", &BenchRoof::spine_bytes),
                      Required("expert_bytes", &BenchRoof::expert_bytes),
                      Required("state_bytes", &BenchRoof::state_bytes),
                      Required("context_bytes", &BenchRoof::context_bytes),
                      Required("multiply_adds", &BenchRoof::multiply_adds),
                      Required("head_multiply_adds", &BenchRoof::head_multiply_adds),
                      Required("context_multiply_adds", &BenchRoof::context_multiply_adds),
                      Required("spine_gb_per_s", &BenchRoof::spine_gb_per_s),
                      Required("expert_gb_per_s", &BenchRoof::expert_gb_per_s),
                      Required("peak_gop_per_s", &BenchRoof::peak_gop_per_s),
                      Required("decode_tokens_per_s", &BenchRoof::decode_tokens_per_s));
};

template <>
struct Schema<BenchPoint> {
  static constexpr auto fields = std::make_tuple(
      Required("kind", &BenchPoint::kind), Required("tokens", &BenchPoint::tokens),
      Required("batch", &BenchPoint::batch), Required("samples", &BenchPoint::samples),
      Required("step_ms", &BenchPoint::step_ms), Required("step_ms_p10", &BenchPoint::step_ms_p10),
      Required("step_ms_p90", &BenchPoint::step_ms_p90),
      Required("ms_per_token", &BenchPoint::ms_per_token),
      Required("tokens_per_s", &BenchPoint::tokens_per_s),
      Required("gb_per_s", &BenchPoint::gb_per_s), Required("gop_per_s", &BenchPoint::gop_per_s),
      Required("limit_tokens_per_s", &BenchPoint::limit_tokens_per_s),
      Required("limit_by", &BenchPoint::limit_by), Required("share", &BenchPoint::share));
};

template <>
struct Schema<BenchDone> {
  static constexpr auto fields = std::make_tuple(
      Required("model_path", &BenchDone::model_path),
      Required("architecture", &BenchDone::architecture),
      Required("fingerprint", &BenchDone::fingerprint), Required("vocab", &BenchDone::vocab),
      Required("parameters", &BenchDone::parameters), Required("precision", &BenchDone::precision),
      Required("memory_bytes", &BenchDone::memory_bytes),
      Required("processor", &BenchDone::processor), Required("processors", &BenchDone::processors),
      Required("threads", &BenchDone::threads), Required("target", &BenchDone::target),
      Required("date", &BenchDone::date), Required("build_id", &BenchDone::build_id),
      Required("quick", &BenchDone::quick), Required("seconds", &BenchDone::seconds),
      Required("ceilings", &BenchDone::ceilings), Required("roof", &BenchDone::roof),
      Required("points", &BenchDone::points));
};

}  // namespace mk::protocol
