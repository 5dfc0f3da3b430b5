// SessionRecord: what is kept of a session on disk beside the states, as one msgpack map.
//
// Thread-safe. What is read may have been damaged or made up by somebody: decoding never throws,
// never reads outside the bytes, and allocates no more than a small multiple of their number.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "protocol/model_selector.h"
#include "protocol/session_messages.h"

namespace mk::protocol {

inline constexpr uint32_t kSessionRecordVersion = 1;
// Numbers that the turns of a session may hold together: what a message can carry, with room for
// its other values.
inline constexpr size_t kMaxSessionIds = size_t{3} << 19;
inline constexpr size_t kMaxSessionTurns = size_t{1} << 16;

struct SessionTurnRecord {
  std::optional<std::string> user;  // as SessionTurn
  std::string content;
  std::string reasoning;
  std::string finish_reason;
  // What was read: the first `common` tokens of the session as it was after the turn before, then
  // `prompt`. A conversation is rendered anew for every turn, so its beginning may change.
  uint64_t common = 0;
  std::vector<int32_t> prompt;
  std::vector<int32_t> ids;  // generated
  // The pack of the state after it, if that is kept: its number, from 1 on (0: it is not kept), its
  // state id and its size.
  uint64_t pack = 0;
  std::string state_id;
  uint64_t pack_bytes = 0;
  uint64_t ended_ms = 0;  // since 1970
  bool operator==(const SessionTurnRecord&) const = default;
};

struct SessionRecord {
  uint32_t version = kSessionRecordVersion;
  std::string kind;  // as SessionInfo
  ModelSelector model;
  std::string fingerprint;      // of the model; "": not used yet
  std::string precision;        // "": not settled
  bool chunked_prefill = true;  // settled by the first turn
  std::string dialect;          // of conversations; "": the vocabulary's
  bool thinking = true;         // of conversations
  std::optional<std::string> system;
  std::string forked_from;
  uint64_t created_ms = 0;  // since 1970
  uint64_t used_ms = 0;
  uint64_t next_pack = 1;  // numbers are never used twice
  std::vector<SessionTurnRecord> turns;
  bool operator==(const SessionRecord&) const = default;
};

// Tokens of the session after its first `turns` turns.
std::vector<int32_t> TokensAfter(const SessionRecord& record, size_t turns);
uint64_t CountTokens(const SessionRecord& record);

// Whether it can be written and read again. Errors: kContextOverflow when it has become too long.
Status CheckSessionSize(const SessionRecord& record);
// Bytes of text that are not UTF-8 are replaced.
std::string EncodeSessionRecord(const SessionRecord& record);
// Errors: kUnsupportedVersion for one of a later version, kBadRequest, naming what is wrong.
Result<SessionRecord> DecodeSessionRecord(std::string_view bytes);

}  // namespace mk::protocol
