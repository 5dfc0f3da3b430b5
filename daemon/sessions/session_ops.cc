#include "daemon/sessions/session_ops.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/common_length.h"
#include "daemon/pack_lineage.h"
#include "daemon/pack_names.h"
#include "engine/base/atomic_file.h"
#include "engine/pack/pack_copy.h"
#include "engine/pack/pack_diff.h"
#include "engine/pack/pack_reader.h"

namespace mk::daemon {
namespace {

using nlohmann::json;
using protocol::SessionRecord;
using protocol::SessionTurnRecord;

constexpr const char* kLineageKey = "session";
constexpr int kMaxDepth = 8;
// Of what is told of each session from where it parts from the other.
constexpr size_t kMaxRest = 4096;
constexpr size_t kMaxTokens = size_t{1} << 20;

// The info that the store tells of a session that it has.
protocol::SessionInfo InfoOf(const SessionStore& store, const std::string& name) {
  for (protocol::SessionInfo& info : store.List()) {
    if (info.name == name) return std::move(info);
  }
  return {};
}

std::string WholeText(const SessionRecord& record) {
  const bool chat = record.kind == protocol::kChatSession;
  std::string text;
  for (const SessionTurnRecord& turn : record.turns) {
    if (chat) text += "> ";
    text += turn.user.value_or("");
    if (chat) text += "\n";
    text += turn.content;
    if (chat) text += "\n";
  }
  return text;
}

// Where a byte of a text begins a character.
bool Begins(const std::string& text, size_t at) {
  return at >= text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

std::string From(const std::string& text, size_t begin) {
  size_t end = std::min(text.size(), begin + kMaxRest);
  while (!Begins(text, end)) --end;
  return text.substr(begin, end - begin);
}

// The pack of the state after the last turn; empty: it is not kept.
std::string LastPack(const SessionStore& store, const std::string& name,
                     const SessionRecord& record) {
  if (record.turns.empty() || record.turns.back().pack == 0) return {};
  return store.PackPath(name, record.turns.back().pack);
}

void AddDistances(const PackDifference& difference, protocol::SessionDiffDone& done) {
  std::map<uint16_t, protocol::StateDistance> arrays;
  for (const SectionDifference& one : difference.sections) {
    const PackSection& section = one.section;
    if (section.Is(PackSectionType::kTokens) || section.Is(PackSectionType::kLineage)) continue;
    protocol::StateDistance& distance = arrays[section.type];
    distance.array = SectionTypeName(section.type);
    ++distance.layers;
    distance.elements += uint64_t{section.dims[0]} * section.dims[1] * section.dims[2];
    distance.different += one.different;
    distance.relative = std::max(distance.relative, one.relative);
  }
  for (auto& [type, distance] : arrays) done.arrays.push_back(std::move(distance));
  done.identical = difference.identical;
  done.unmatched = difference.unmatched;
}

Status CompareStates(const SessionStore& store, const protocol::SessionDiffArgs& args,
                     const SessionRecord& a, const SessionRecord& b,
                     protocol::SessionDiffDone& done) {
  const std::string pack_a = LastPack(store, args.a, a);
  const std::string pack_b = LastPack(store, args.b, b);
  if (pack_a.empty() || pack_b.empty()) {
    done.states_missing = "the state of " + (pack_a.empty() ? args.a : args.b) + " is not kept";
    return {};
  }
  auto difference = DiffPacks(pack_a, pack_b);
  if (difference) {
    AddDistances(*difference, done);
  } else if (difference.error().code == ErrorCode::kNotFound ||
             difference.error().code == ErrorCode::kCorrupt) {
    done.states_missing = difference.error().message;
  } else {
    return Fail(difference.error());
  }
  return {};
}

// How the last answer in a pack is finished.
Result<std::vector<int32_t>> ClosingOf(const std::string& path) {
  auto pack = PackReader::Open(path);
  if (!pack) return Fail(pack.error());
  auto lineage = pack->ReadLineage();
  if (!lineage) return Fail(lineage.error());
  return ClosingIn(*lineage, path);
}

// Which states are kept is nobody's business but the store's.
void ForgetStates(SessionRecord& record) {
  record.next_pack = 1;
  for (SessionTurnRecord& turn : record.turns) {
    turn.pack = turn.pack_bytes = 0;
    turn.state_id.clear();
  }
}

// The turns as JSON, for the lineage of a pack.
std::string LineageOf(const std::string& name, SessionRecord record,
                      const std::vector<int32_t>& closing) {
  ForgetStates(record);
  const std::string bytes = protocol::EncodeSessionRecord(record);
  json lineage = {{"operation", "session"}, {"name", name}};
  lineage[kLineageKey] = json::from_msgpack(bytes, true, false);
  PutClosing(closing, lineage);
  return lineage.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The turns that a lineage tells. Nothing: it tells none. Errors: kCorrupt.
Result<std::optional<SessionRecord>> RecordIn(const std::string& path, const std::string& text) {
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= kMaxDepth; };
  const json lineage = json::parse(text, shallow, false);
  if (!lineage.is_object() || !lineage.contains(kLineageKey)) return std::optional<SessionRecord>();
  const std::vector<uint8_t> bytes = json::to_msgpack(lineage[kLineageKey]);
  auto record = protocol::DecodeSessionRecord(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (record) return std::optional<SessionRecord>(std::move(*record));
  return Fail(ErrorCode::kCorrupt, path + " has a session in its lineage that cannot be read: " +
                                       record.error().message);
}

// What a pack tells of its text.
Result<SessionRecord> RecordOf(const PackReader& pack) {
  const PackInfo& info = pack.info();
  const PackSection* section = info.Find(PackSectionType::kTokens);
  if (section == nullptr || info.format != PackFormat::kMkmem2 || info.key.length == 0) {
    return Fail(
        ErrorCode::kUnsupported, pack.path() + " does not tell of what text it is the state",
        "go on with it by mk run --memory; sessions are made of packs that know their text");
  }
  if (info.key.length > kMaxTokens) {
    return Fail(ErrorCode::kContextOverflow, pack.path() + " has more tokens than a session can");
  }
  auto numbers = pack.ReadNumbers(*section);
  if (!numbers) return Fail(numbers.error());
  const std::vector<int32_t> tokens(numbers->begin(), numbers->end());
  auto lineage = pack.ReadLineage();
  if (!lineage) return Fail(lineage.error());
  auto told = RecordIn(pack.path(), *lineage);
  if (!told) return Fail(told.error());
  const std::string precision(PrecisionName(info.key.options.precision));
  if (*told) {
    SessionRecord& record = **told;
    const bool fits = record.fingerprint == info.fingerprint && record.precision == precision &&
                      !record.turns.empty() &&
                      protocol::TokensAfter(record, record.turns.size()) == tokens;
    ForgetStates(record);
    if (fits) return std::move(record);
    return Fail(ErrorCode::kCorrupt,
                pack.path() + " has a session in its lineage that is not of its state");
  }
  SessionRecord record;
  record.kind = protocol::kTextSession;
  record.fingerprint = info.fingerprint;
  record.precision = precision;
  record.chunked_prefill = info.key.options.chunked_prefill;
  SessionTurnRecord turn;
  turn.prompt = tokens;
  record.turns.push_back(std::move(turn));
  return record;
}

}  // namespace

Result<protocol::SessionShowDone> ShowSession(SessionStore& store, const std::string& name) {
  auto record = store.Read(name);
  if (!record) return Fail(record.error());
  protocol::SessionShowDone done;
  done.session = InfoOf(store, name);
  done.system = std::move(record->system);
  done.dialect = record->dialect;
  done.thinking = record->thinking;
  for (SessionTurnRecord& turn : record->turns) {
    const uint64_t tokens = turn.common + turn.prompt.size() + turn.ids.size();
    done.turns.push_back({std::move(turn.user), std::move(turn.content), std::move(turn.reasoning),
                          std::move(turn.finish_reason), turn.ids.size(), tokens,
                          std::move(turn.state_id), turn.ended_ms});
  }
  return done;
}

Result<protocol::SessionNewDone> NewSession(SessionStore& store,
                                            const protocol::SessionNewArgs& args) {
  if (auto free = store.CheckFree(args.name); !free) return Fail(free.error());
  SessionRecord record;
  record.model = args.model;
  if (args.precision != protocol::kAutoPrecision) record.precision = args.precision;
  record.system = args.system;
  if (record.system) record.kind = protocol::kChatSession;
  record.created_ms = record.used_ms = WallClockMs();
  auto info = store.Keep(args.name, record);
  if (!info) return Fail(info.error());
  return protocol::SessionNewDone{std::move(*info)};
}

Result<protocol::SessionUndoDone> UndoTurns(SessionStore& store,
                                            const protocol::SessionUndoArgs& args) {
  auto record = store.Read(args.name);
  if (!record) return Fail(record.error());
  const size_t has = record->turns.size();
  const uint64_t count = args.turns.value_or(has);
  if (count > has) {
    return Fail(ErrorCode::kInvalidArgument,
                "session " + args.name + " has " + std::to_string(has) +
                    (has == 1 ? " turn, not " : " turns, not ") + std::to_string(count),
                "`mk session info " + args.name + "` shows them");
  }
  record->turns.resize(has - static_cast<size_t>(count));
  if (record->turns.empty()) record->kind = record->system ? protocol::kChatSession : "";
  record->used_ms = WallClockMs();
  auto info = store.Keep(args.name, *record);
  if (!info) return Fail(info.error());
  return protocol::SessionUndoDone{std::move(*info), count};
}

Result<protocol::SessionDiffDone> DiffSessions(SessionStore& store,
                                               const protocol::SessionDiffArgs& args) {
  auto a = store.Read(args.a);
  if (!a) return Fail(a.error());
  auto b = store.Read(args.b);
  if (!b) return Fail(b.error());
  protocol::SessionDiffDone done;
  done.turns_a = a->turns.size();
  done.turns_b = b->turns.size();
  const size_t most = std::min(a->turns.size(), b->turns.size());
  while (done.common_turns < most) {
    const SessionTurnRecord& one = a->turns[done.common_turns];
    const SessionTurnRecord& other = b->turns[done.common_turns];
    if (one.user != other.user || one.content != other.content || one.ids != other.ids) break;
    ++done.common_turns;
  }
  const auto tokens_a = protocol::TokensAfter(*a, a->turns.size());
  const auto tokens_b = protocol::TokensAfter(*b, b->turns.size());
  done.tokens_a = tokens_a.size();
  done.tokens_b = tokens_b.size();
  done.common_tokens = CommonLength(tokens_a, tokens_b);
  const std::string text_a = WholeText(*a);
  const std::string text_b = WholeText(*b);
  size_t parting = CommonLength(text_a, text_b);
  while (parting > 0 && (!Begins(text_a, parting) || !Begins(text_b, parting))) --parting;
  done.rest_a = From(text_a, parting);
  done.rest_b = From(text_b, parting);
  done.same_model = !a->fingerprint.empty() && a->fingerprint == b->fingerprint;
  if (auto compared = CompareStates(store, args, *a, *b, done); !compared) {
    return Fail(compared.error());
  }
  return done;
}

Result<protocol::SessionSaveDone> SaveSession(SessionStore& store,
                                              const protocol::SessionSaveArgs& args) {
  auto record = store.Read(args.name);
  if (!record) return Fail(record.error());
  const std::string from = LastPack(store, args.name, *record);
  if (from.empty()) {
    return Fail(ErrorCode::kUnsupported,
                "the state after the last turn of session " + args.name + " is not kept",
                record->turns.empty() ? "nothing was said in it yet"
                                      : "go on with it once; `mk run --session " + args.name +
                                            " --continue -n 0` makes the state of a text again");
  }
  auto place = PlaceForPack(args.pack.empty() ? args.name : args.pack);
  if (!place) return Fail(place.error());
  if (place->front() != '/') {
    return Fail(ErrorCode::kInvalidArgument, "\"" + *place + "\" is no name of a pack",
                "name the pack: `mk session save NAME PACK`");
  }
  auto closing = ClosingOf(from);
  if (!closing) return Fail(closing.error());
  auto info = CopyPack(from, LineageOf(args.name, *record, *closing), {*place, args.replace});
  if (!info) return Fail(info.error());
  return protocol::SessionSaveDone{*place, info->state_id, info->key.length, info->file_bytes};
}

Result<protocol::SessionRestoreDone> RestoreSession(SessionStore& store,
                                                    const protocol::SessionRestoreArgs& args) {
  if (auto free = store.CheckFree(args.name); !free) return Fail(free.error());
  auto path = FindPack(args.pack);
  if (!path) return Fail(path.error());
  auto pack = PackReader::Open(*path);
  if (!pack) return Fail(pack.error());
  auto record = RecordOf(*pack);
  if (!record) return Fail(record.error());
  if (!args.model.model.empty()) record->model = args.model;
  if (record->turns.back().ended_ms == 0) record->turns.back().ended_ms = WallClockMs();
  record->forked_from.clear();
  record->created_ms = record->used_ms = WallClockMs();
  auto closing = ClosingOf(*path);
  if (!closing) return Fail(closing.error());
  auto info = store.Keep(args.name, *record, [&](const std::string& to) {
    return CopyPack(*path, ClosingLineage(*closing), {to, true});
  });
  if (!info) return Fail(info.error());
  return protocol::SessionRestoreDone{std::move(*info)};
}

}  // namespace mk::daemon
