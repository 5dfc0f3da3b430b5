// The fields of what is told of sessions. Included by reply_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/session_messages.h"

namespace mk::protocol {

template <>
struct Schema<SessionInfo> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &SessionInfo::name), Required("kind", &SessionInfo::kind),
      Required("model", &SessionInfo::model), Required("fingerprint", &SessionInfo::fingerprint),
      Required("precision", &SessionInfo::precision), Required("turns", &SessionInfo::turns),
      Required("tokens", &SessionInfo::tokens), Required("states", &SessionInfo::states),
      Required("disk_bytes", &SessionInfo::disk_bytes),
      Required("created_ms", &SessionInfo::created_ms), Required("used_ms", &SessionInfo::used_ms),
      Required("forked_from", &SessionInfo::forked_from), Required("in_use", &SessionInfo::in_use),
      Required("waiting", &SessionInfo::waiting));
};

template <>
struct Schema<SessionTurn> {
  static constexpr auto fields = std::make_tuple(
      Optional("user", &SessionTurn::user), Required("content", &SessionTurn::content),
      Required("reasoning", &SessionTurn::reasoning),
      Required("finish_reason", &SessionTurn::finish_reason),
      Required("generated", &SessionTurn::generated), Required("tokens", &SessionTurn::tokens),
      Required("state_id", &SessionTurn::state_id), Required("ended_ms", &SessionTurn::ended_ms));
};

template <>
struct Schema<SessionStep> {
  static constexpr auto fields = std::make_tuple(
      Required("name", &SessionStep::name), Required("turns", &SessionStep::turns),
      Required("tokens", &SessionStep::tokens), Required("created", &SessionStep::created),
      Required("kept", &SessionStep::kept), Required("known", &SessionStep::known),
      Required("reload_ms", &SessionStep::reload_ms), Required("state_id", &SessionStep::state_id));
};

template <>
struct Schema<SessionsDone> {
  static constexpr auto fields = std::make_tuple(Required("sessions", &SessionsDone::sessions),
                                                 Required("troubles", &SessionsDone::troubles));
};

template <>
struct Schema<SessionNewDone> {
  static constexpr auto fields = std::make_tuple(Required("session", &SessionNewDone::session));
};

template <>
struct Schema<SessionShowDone> {
  static constexpr auto fields = std::make_tuple(
      Required("session", &SessionShowDone::session), Optional("system", &SessionShowDone::system),
      Required("dialect", &SessionShowDone::dialect),
      Required("thinking", &SessionShowDone::thinking), Required("turns", &SessionShowDone::turns));
};

template <>
struct Schema<SessionForkDone> {
  static constexpr auto fields = std::make_tuple(Required("session", &SessionForkDone::session));
};

template <>
struct Schema<SessionUndoDone> {
  static constexpr auto fields = std::make_tuple(Required("session", &SessionUndoDone::session),
                                                 Required("removed", &SessionUndoDone::removed));
};

template <>
struct Schema<SessionRenameDone> {
  static constexpr auto fields = std::make_tuple(Required("session", &SessionRenameDone::session));
};

template <>
struct Schema<SessionRemoveDone> {
  static constexpr auto fields = std::make_tuple(Required("removed", &SessionRemoveDone::removed));
};

template <>
struct Schema<SessionSaveDone> {
  static constexpr auto fields = std::make_tuple(
      Required("path", &SessionSaveDone::path), Required("state_id", &SessionSaveDone::state_id),
      Required("tokens", &SessionSaveDone::tokens),
      Required("file_bytes", &SessionSaveDone::file_bytes));
};

template <>
struct Schema<SessionRestoreDone> {
  static constexpr auto fields = std::make_tuple(Required("session", &SessionRestoreDone::session));
};

template <>
struct Schema<StateDistance> {
  static constexpr auto fields = std::make_tuple(Required("array", &StateDistance::array),
                                                 Required("layers", &StateDistance::layers),
                                                 Required("elements", &StateDistance::elements),
                                                 Required("different", &StateDistance::different),
                                                 Required("relative", &StateDistance::relative));
};

template <>
struct Schema<SessionDiffDone> {
  static constexpr auto fields = std::make_tuple(
      Required("turns_a", &SessionDiffDone::turns_a),
      Required("turns_b", &SessionDiffDone::turns_b),
      Required("common_turns", &SessionDiffDone::common_turns),
      Required("tokens_a", &SessionDiffDone::tokens_a),
      Required("tokens_b", &SessionDiffDone::tokens_b),
      Required("common_tokens", &SessionDiffDone::common_tokens),
      Required("rest_a", &SessionDiffDone::rest_a), Required("rest_b", &SessionDiffDone::rest_b),
      Required("same_model", &SessionDiffDone::same_model),
      Required("states_missing", &SessionDiffDone::states_missing),
      Required("identical", &SessionDiffDone::identical),
      Required("arrays", &SessionDiffDone::arrays),
      Required("unmatched", &SessionDiffDone::unmatched));
};

}  // namespace mk::protocol
