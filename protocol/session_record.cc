#include "protocol/session_record.h"

#include <algorithm>

#include "protocol/message_object.h"
#include "protocol/request_fields.h"
#include "protocol/value_reader.h"
#include "protocol/value_writer.h"

namespace mk::protocol {
namespace {

constexpr size_t kMaxTextBytes = 8192;
constexpr Rule kLineRule = Rule{}.Bytes(kMaxTextBytes);

struct RecordHead {
  uint32_t version = 0;
};

Status Bad(std::string message) {
  return Fail(ErrorCode::kBadRequest, std::move(message));
}

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

uint64_t TokensOf(const SessionTurnRecord& turn) {
  return turn.common + turn.prompt.size() + turn.ids.size();
}

// `before`: tokens of the session before it.
Status CheckTurn(const SessionTurnRecord& turn, uint64_t before, uint64_t next_pack) {
  if (turn.common > before) return Bad("a turn that begins with tokens that are not there");
  if (static_cast<double>(TokensOf(turn)) > kMaxTokens) return Bad("more tokens than can be");
  const bool kept = turn.pack != 0;
  if (kept ? !IsHex(turn.state_id, 64) : !turn.state_id.empty()) {
    return Bad("a state without its id, or an id without its state");
  }
  if (turn.pack >= next_pack) return Bad("a state of a number that was not given yet");
  return {};
}

}  // namespace

template <>
struct Schema<RecordHead> {
  static constexpr auto fields = std::make_tuple(Required("version", &RecordHead::version));
};

template <>
struct Schema<SessionTurnRecord> {
  static constexpr auto fields = std::make_tuple(
      Optional("user", &SessionTurnRecord::user), Required("content", &SessionTurnRecord::content),
      Required("reasoning", &SessionTurnRecord::reasoning),
      Required("finish_reason", &SessionTurnRecord::finish_reason, kLineRule),
      Required("common", &SessionTurnRecord::common, Rule{}.Range(0, kMaxTokens)),
      Required("prompt", &SessionTurnRecord::prompt, kIdsRule),
      Required("ids", &SessionTurnRecord::ids, kIdsRule),
      Required("pack", &SessionTurnRecord::pack),
      Required("state_id", &SessionTurnRecord::state_id, kLineRule),
      Required("pack_bytes", &SessionTurnRecord::pack_bytes),
      Required("ended_ms", &SessionTurnRecord::ended_ms));
};

template <>
struct Schema<SessionRecord> {
  static constexpr auto fields = std::make_tuple(
      Required("version", &SessionRecord::version),
      Required("kind", &SessionRecord::kind, Rule{}.OneOf("|text|chat")),
      Inline(&SessionRecord::model),
      Required("fingerprint", &SessionRecord::fingerprint, kLineRule),
      Required("precision", &SessionRecord::precision, Rule{}.OneOf("|exact|bf16|q8")),
      Required("chunked_prefill", &SessionRecord::chunked_prefill),
      Required("dialect", &SessionRecord::dialect, kDialectRule),
      Required("thinking", &SessionRecord::thinking), Optional("system", &SessionRecord::system),
      Required("forked_from", &SessionRecord::forked_from, kLineRule),
      Required("created_ms", &SessionRecord::created_ms),
      Required("used_ms", &SessionRecord::used_ms),
      Required("next_pack", &SessionRecord::next_pack, Rule{}.Range(1, 1e15)),
      Required("turns", &SessionRecord::turns, Rule{}.Items(kMaxSessionTurns)));
};

bool IsSessionName(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  return !text.empty() && text.size() <= kMaxSessionNameBytes && plain(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

std::vector<int32_t> TokensAfter(const SessionRecord& record, size_t turns) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < turns; ++i) {
    const SessionTurnRecord& turn = record.turns[i];
    tokens.resize(std::min<size_t>(tokens.size(), turn.common));
    tokens.insert(tokens.end(), turn.prompt.begin(), turn.prompt.end());
    tokens.insert(tokens.end(), turn.ids.begin(), turn.ids.end());
  }
  return tokens;
}

uint64_t CountTokens(const SessionRecord& record) {
  return record.turns.empty() ? 0 : TokensOf(record.turns.back());
}

Status CheckSessionSize(const SessionRecord& record) {
  size_t ids = 0;
  for (const SessionTurnRecord& turn : record.turns) ids += turn.prompt.size() + turn.ids.size();
  if (ids <= kMaxSessionIds && record.turns.size() <= kMaxSessionTurns) return {};
  return Fail(ErrorCode::kContextOverflow,
              "the session has become too long: " + std::to_string(record.turns.size()) +
                  " turns with " + std::to_string(ids) + " tokens",
              "begin another session, or take turns back: mk session undo");
}

std::string EncodeSessionRecord(const SessionRecord& record) {
  ValueWriter writer(ValueWriter::BadText::kReplace);
  writer.Write(record);
  return writer.Take();
}

Result<SessionRecord> DecodeSessionRecord(std::string_view bytes) {
  Result<msgpack::object_handle> object = UnpackMessage(bytes);
  if (!object) return Fail(std::move(object.error()));
  const ValueReader reader(UnknownFields::kIgnore);
  RecordHead head;
  if (Status read = reader.Read(object->get(), head, {}); !read) return Fail(read.error());
  if (head.version != kSessionRecordVersion) {
    return Fail(ErrorCode::kUnsupportedVersion,
                "a session of version " + std::to_string(head.version) + ", this build reads " +
                    std::to_string(kSessionRecordVersion));
  }
  SessionRecord record;
  if (Status read = reader.Read(object->get(), record, {}); !read) return Fail(read.error());
  if (!record.fingerprint.empty() && !IsHex(record.fingerprint, 32)) {
    return Fail(ErrorCode::kBadRequest, "`fingerprint` is no model's");
  }
  const bool used = !record.turns.empty();
  if (used && (record.kind.empty() || record.fingerprint.empty() || record.precision.empty())) {
    return Fail(ErrorCode::kBadRequest, "turns of a session that nothing was settled for");
  }
  uint64_t tokens = 0;
  for (const SessionTurnRecord& turn : record.turns) {
    if (Status good = CheckTurn(turn, tokens, record.next_pack); !good) return Fail(good.error());
    tokens = TokensOf(turn);
  }
  if (Status good = CheckSessionSize(record); !good) return Fail(good.error());
  return record;
}

}  // namespace mk::protocol
