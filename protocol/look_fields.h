// The fields of looks into a model. Included by reply_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/look_messages.h"

namespace mk::protocol {

template <>
struct Schema<LensLayer> {
  static constexpr auto fields =
      std::make_tuple(Required("layer", &LensLayer::layer), Required("kind", &LensLayer::kind),
                      Required("ids", &LensLayer::ids), Required("texts", &LensLayer::texts),
                      Required("probabilities", &LensLayer::probabilities),
                      Required("entropy", &LensLayer::entropy), Optional("rank", &LensLayer::rank),
                      Optional("probability", &LensLayer::probability));
};

template <>
struct Schema<LensChunk> {
  static constexpr auto fields = std::make_tuple(
      Required("position", &LensChunk::position), Required("id", &LensChunk::id),
      Required("text", &LensChunk::text), Optional("index", &LensChunk::index),
      Optional("next", &LensChunk::next), Required("next_text", &LensChunk::next_text),
      Required("layers", &LensChunk::layers));
};

template <>
struct Schema<LayerRms> {
  static constexpr auto fields =
      std::make_tuple(Required("layer", &LayerRms::layer), Required("kind", &LayerRms::kind),
                      Required("rms", &LayerRms::rms));
};

template <>
struct Schema<HiddenStatsChunk> {
  static constexpr auto fields =
      std::make_tuple(Required("position", &HiddenStatsChunk::position),
                      Required("layers", &HiddenStatsChunk::layers),
                      Required("output_rms", &HiddenStatsChunk::output_rms),
                      Required("logits_mean", &HiddenStatsChunk::logits_mean),
                      Required("logits_std", &HiddenStatsChunk::logits_std));
};

template <>
struct Schema<ExpertCounts> {
  static constexpr auto fields = std::make_tuple(Required("layer", &ExpertCounts::layer),
                                                 Required("experts", &ExpertCounts::experts),
                                                 Required("counts", &ExpertCounts::counts));
};

template <>
struct Schema<ExpertTally> {
  static constexpr auto fields = std::make_tuple(
      Required("tokens", &ExpertTally::tokens), Required("layers", &ExpertTally::layers),
      Required("experts", &ExpertTally::experts), Required("top_k", &ExpertTally::top_k),
      Required("counts", &ExpertTally::counts));
};

template <>
struct Schema<ExpertStatsModel> {
  static constexpr auto fields =
      std::make_tuple(Required("model", &ExpertStatsModel::model),
                      Required("fingerprint", &ExpertStatsModel::fingerprint),
                      Required("tally", &ExpertStatsModel::tally));
};

template <>
struct Schema<ExpertStatsDone> {
  static constexpr auto fields = std::make_tuple(Required("counting", &ExpertStatsDone::counting),
                                                 Required("models", &ExpertStatsDone::models));
};

}  // namespace mk::protocol
