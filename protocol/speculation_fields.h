// The fields of a run's report on its drafts. Included by reply_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/speculation_messages.h"

namespace mk::protocol {

template <>
struct Schema<SpeculationReport> {
  static constexpr auto fields =
      std::make_tuple(Required("passes", &SpeculationReport::passes),
                      Required("singles", &SpeculationReport::singles),
                      Required("drafted", &SpeculationReport::drafted),
                      Required("accepted", &SpeculationReport::accepted),
                      Required("rejected", &SpeculationReport::rejected),
                      Required("bonus", &SpeculationReport::bonus),
                      Required("drafted_at", &SpeculationReport::drafted_at),
                      Required("accepted_at", &SpeculationReport::accepted_at),
                      Required("verify_ms", &SpeculationReport::verify_ms),
                      Required("rollback_ms", &SpeculationReport::rollback_ms));
};

}  // namespace mk::protocol
