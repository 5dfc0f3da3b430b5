// The fields of what is told of shadows that were made. Included by job_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/shadow_messages.h"

namespace mk::protocol {

template <>
struct Schema<ShadowDone> {
  static constexpr auto fields = std::make_tuple(
      Required("path", &ShadowDone::path), Required("model_path", &ShadowDone::model_path),
      Required("format", &ShadowDone::format), Required("fingerprint", &ShadowDone::fingerprint),
      Required("stages", &ShadowDone::stages), Required("layers", &ShadowDone::layers),
      Required("experts", &ShadowDone::experts), Required("file_bytes", &ShadowDone::file_bytes),
      Required("expert_bytes", &ShadowDone::expert_bytes),
      Required("relative_error", &ShadowDone::relative_error), Required("gain", &ShadowDone::gain),
      Required("resumed_layers", &ShadowDone::resumed_layers),
      Required("seconds", &ShadowDone::seconds));
};

}  // namespace mk::protocol
