// Sessions: texts and conversations that the daemon keeps by name, with the states that a model was
// left in. Included by messages.h.
//
// A run with RunArgs::session goes on with one, and makes it when there is none of the name. The
// ops here look at sessions and change them beside runs. While a client's run holds a session,
// what would change it is refused (busy); what reads it sees the last turn that was kept.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/model_selector.h"

namespace mk::protocol {

// Names of sessions: letters, digits, '.', '_' and '-', of which the first is a letter or a digit.
inline constexpr size_t kMaxSessionNameBytes = 64;
bool IsSessionName(std::string_view text);

// What a session was begun as; settled by its first turn, or by a system message before it.
inline constexpr const char* kTextSession = "text";  // one text that goes on and on
inline constexpr const char* kChatSession = "chat";  // turns of a conversation

struct SessionInfo {
  std::string name;
  std::string kind;         // kTextSession, kChatSession; "": not settled
  std::string model;        // path
  std::string fingerprint;  // of the model; "": not used yet
  std::string precision;    // "": not settled
  uint64_t turns = 0;
  uint64_t tokens = 0;      // after the last turn
  uint64_t states = 0;      // turns whose state is kept
  uint64_t disk_bytes = 0;  // of their packs; what forks share counts for each of them
  uint64_t created_ms = 0;  // since 1970
  uint64_t used_ms = 0;     // since 1970: when it was changed last
  std::string forked_from;  // name that the other session had then; "": it is no fork
  bool in_use = false;      // a run holds it
  uint64_t waiting = 0;     // runs that wait for it
  bool operator==(const SessionInfo&) const = default;
};

struct SessionTurn {
  std::optional<std::string> user;  // nothing: what was there was gone on with
  std::string content;
  std::string reasoning;
  std::string finish_reason;  // as RunDone
  uint64_t generated = 0;     // tokens
  uint64_t tokens = 0;        // of the session after it
  std::string state_id;       // of the state after it, 64 hex digits; "": it is not kept
  uint64_t ended_ms = 0;      // since 1970
  bool operator==(const SessionTurn&) const = default;
};

// What a run in a session did to it. In RunDone.
struct SessionStep {
  std::string name;
  uint64_t turns = 0;    // now
  uint64_t tokens = 0;   // now
  bool created = false;  // there was none of the name
  bool kept = false;     // false: the session is as before, for nothing was said
  uint64_t known = 0;    // tokens that a state of the session had read
  double reload_ms = 0;  // time to get that state from the disk; 0: it was in memory
  std::string state_id;  // of the state after the turn
  bool operator==(const SessionStep&) const = default;
};

// ---------------------------------------------------------------- requests

struct SessionsArgs {
  bool operator==(const SessionsArgs&) const = default;
};
struct SessionNewArgs {
  std::string name;
  ModelSelector model;
  std::string precision = "auto";     // "auto": that of the first run
  std::optional<std::string> system;  // makes it a conversation
  bool operator==(const SessionNewArgs&) const = default;
};
struct SessionShowArgs {
  std::string name;
  bool operator==(const SessionShowArgs&) const = default;
};
struct SessionForkArgs {
  std::string from;
  std::string name;               // of the new one
  std::optional<uint64_t> turns;  // the first of them; none: all
  bool operator==(const SessionForkArgs&) const = default;
};
struct SessionUndoArgs {
  std::string name;
  std::optional<uint64_t> turns;  // to take back; none: all
  bool operator==(const SessionUndoArgs&) const = default;
};
struct SessionRenameArgs {
  std::string from;
  std::string name;
  bool operator==(const SessionRenameArgs&) const = default;
};
struct SessionRemoveArgs {
  std::vector<std::string> names;  // all of them, or none if one cannot be removed
  bool operator==(const SessionRemoveArgs&) const = default;
};
// The state after the last turn as a pack, with the turns in its lineage.
struct SessionSaveArgs {
  std::string name;
  std::string pack;      // absolute path, or a name in the folder of packs; "": the session's name
  bool replace = false;  // a pack that is there
  bool operator==(const SessionSaveArgs&) const = default;
};
struct SessionRestoreArgs {
  std::string name;     // of the new session
  std::string pack;     // absolute path, or a name in the folder of packs
  ModelSelector model;  // whose state it is; "": the one that the pack names, else the default
  bool operator==(const SessionRestoreArgs&) const = default;
};
struct SessionDiffArgs {
  std::string a;
  std::string b;
  bool operator==(const SessionDiffArgs&) const = default;
};

// ---------------------------------------------------------------- type "done"

struct SessionsDone {
  std::vector<SessionInfo> sessions;  // by name
  std::vector<std::string> troubles;  // folders that cannot be used, and why
  bool operator==(const SessionsDone&) const = default;
};
struct SessionNewDone {
  SessionInfo session;
  bool operator==(const SessionNewDone&) const = default;
};
struct SessionShowDone {
  SessionInfo session;
  std::optional<std::string> system;
  std::string dialect;   // of conversations; "": the vocabulary's
  bool thinking = true;  // of conversations
  std::vector<SessionTurn> turns;
  bool operator==(const SessionShowDone&) const = default;
};
struct SessionForkDone {
  SessionInfo session;  // the new one
  bool operator==(const SessionForkDone&) const = default;
};
struct SessionUndoDone {
  SessionInfo session;
  uint64_t removed = 0;  // turns
  bool operator==(const SessionUndoDone&) const = default;
};
struct SessionRenameDone {
  SessionInfo session;
  bool operator==(const SessionRenameDone&) const = default;
};
struct SessionRemoveDone {
  uint64_t removed = 0;
  bool operator==(const SessionRemoveDone&) const = default;
};
struct SessionSaveDone {
  std::string path;
  std::string state_id;
  uint64_t tokens = 0;
  uint64_t file_bytes = 0;
  bool operator==(const SessionSaveDone&) const = default;
};
struct SessionRestoreDone {
  SessionInfo session;
  bool operator==(const SessionRestoreDone&) const = default;
};

// One kind of arrays of two states, over all layers.
struct StateDistance {
  std::string array;       // "kda_matrix", "latent_rows", "logits", ...
  uint64_t layers = 0;     // arrays of this kind that were compared
  uint64_t elements = 0;   // of them together
  uint64_t different = 0;  // of these
  double relative = 0;     // largest ||a - b|| / ||a|| of an array; 0 for bytes
  bool operator==(const StateDistance&) const = default;
};
struct SessionDiffDone {
  uint64_t turns_a = 0;
  uint64_t turns_b = 0;
  uint64_t common_turns = 0;  // in which the same was said
  uint64_t tokens_a = 0;
  uint64_t tokens_b = 0;
  uint64_t common_tokens = 0;  // before they part
  std::string rest_a;          // what was said from there on; cut if it is long
  std::string rest_b;
  bool same_model = false;
  // Of the states after the last turns. They are not compared when one of them is not kept; then
  // `states_missing` says so.
  std::string states_missing;
  bool identical = false;  // tokens and every number
  std::vector<StateDistance> arrays;
  uint64_t unmatched = 0;  // arrays whose shapes differ, as with other numbers of tokens
  bool operator==(const SessionDiffDone&) const = default;
};

}  // namespace mk::protocol
