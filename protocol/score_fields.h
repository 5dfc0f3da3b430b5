// The fields of score_messages.h but for ScoreArgs, which has its place in request_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/score_messages.h"

namespace mk::protocol {

template <>
struct Schema<ScoreChunk> {
  static constexpr auto fields = std::make_tuple(
      Required("item", &ScoreChunk::item), Required("index", &ScoreChunk::index),
      Required("ids", &ScoreChunk::ids), Required("pieces", &ScoreChunk::pieces),
      Required("logprobs", &ScoreChunk::logprobs), Required("ranks", &ScoreChunk::ranks));
};

template <>
struct Schema<TextScore> {
  static constexpr auto fields = std::make_tuple(
      Required("logprob", &TextScore::logprob), Required("tokens", &TextScore::tokens),
      Required("context_tokens", &TextScore::context_tokens), Required("bytes", &TextScore::bytes),
      Required("top1", &TextScore::top1), Optional("top5", &TextScore::top5),
      Required("unk", &TextScore::unk), Optional("perplexity", &TextScore::perplexity),
      Optional("bits_per_byte", &TextScore::bits_per_byte));
};

}  // namespace mk::protocol
