// The fields of what is told of memory packs. Included by job_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/pack_messages.h"

namespace mk::protocol {

template <>
struct Schema<SavedPack> {
  static constexpr auto fields = std::make_tuple(
      Required("path", &SavedPack::path), Required("format", &SavedPack::format),
      Required("state_id", &SavedPack::state_id), Required("tokens", &SavedPack::tokens),
      Required("bytes", &SavedPack::bytes), Required("save_ms", &SavedPack::save_ms));
};

template <>
struct Schema<AbsorbDone> {
  static constexpr auto fields = std::make_tuple(
      Required("saved", &AbsorbDone::saved), Required("tokens", &AbsorbDone::tokens),
      Required("unk", &AbsorbDone::unk), Required("seconds", &AbsorbDone::seconds),
      Required("precision", &AbsorbDone::precision),
      Required("fingerprint", &AbsorbDone::fingerprint),
      Required("model_path", &AbsorbDone::model_path), Required("warnings", &AbsorbDone::warnings));
};

}  // namespace mk::protocol
