// What the ops about sessions do with the store, one function each. On the states thread.
//
// Errors are those of the store and of packs; not_found, bad_request.

#pragma once

#include "daemon/sessions/session_store.h"
#include "protocol/messages.h"

namespace mk::daemon {

Result<protocol::SessionShowDone> ShowSession(SessionStore& store, const std::string& name);
Result<protocol::SessionNewDone> NewSession(SessionStore& store,
                                            const protocol::SessionNewArgs& args);
Result<protocol::SessionUndoDone> UndoTurns(SessionStore& store,
                                            const protocol::SessionUndoArgs& args);
Result<protocol::SessionDiffDone> DiffSessions(SessionStore& store,
                                               const protocol::SessionDiffArgs& args);
// The state after the last turn as a pack, with the record in its lineage. kUnsupported when that
// state is not kept.
Result<protocol::SessionSaveDone> SaveSession(SessionStore& store,
                                              const protocol::SessionSaveArgs& args);
// A session of a pack: the one that was saved, where its lineage tells, else a text of the pack's
// tokens. kUnsupported for packs without tokens. `args.model` has been resolved.
Result<protocol::SessionRestoreDone> RestoreSession(SessionStore& store,
                                                    const protocol::SessionRestoreArgs& args);

}  // namespace mk::daemon
