// A chat with a model: the conversation, and asking the daemon for its next turn.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/access.h"
#include "client/chat_values.h"
#include "client/conversation.h"
#include "client/output.h"
#include "client/progress.h"
#include "client/session.h"
#include "client/stream.h"
#include "client/transcript.h"

namespace mk::client {

struct ChatSettings {
  AccessOptions access;
  protocol::RunArgs args;  // all but what is said: model, template, sampling
  bool plain = false;      // go on with the text, whatever template the model has
  bool json = false;       // an object per turn instead of text
  bool stats = false;      // a line on stderr after every turn
  bool interactive = false;
  std::string save;     // transcript that is kept up to date; empty: none
  std::string session;  // that the daemon keeps the conversation in; empty: none
};

// How a turn ended.
struct TurnEnd {
  int code = protocol::kExitDone;  // that a process which says nothing else would end with
  bool leave = false;              // the user wants to go: a second Ctrl-C, SIGTERM
};

class Chat {
 public:
  // Both outlive the chat.
  Chat(ChatSettings& settings, Output& output);

  // Loads the model and learns whether it has a chat template; says so once if it has none.
  protocol::Status Open();
  // Another model for the turns to come; the old one stays when it cannot be loaded.
  protocol::Status ChangeModel(const std::string& model);
  // The user's next message and its answer, which is shown as it comes. Whatever was shown is kept
  // in the conversation, however the turn ended. Errors have been reported.
  TurnEnd Say(const std::string& text);
  // Another answer to the last message.
  TurnEnd Retry();
  // Goes on with the last answer; for plain text.
  TurnEnd More();

  Conversation& conversation() { return conversation_; }
  ChatSettings& settings() { return settings_; }
  // The conversation is read as one text.
  bool plain() const { return plain_; }
  const std::string& model_path() const { return model_path_; }
  // Of the last answer.
  const std::optional<protocol::RunDone>& last() const { return last_; }
  protocol::Status Save(const std::string& path) const;
  // Takes back the last turns, in the session too.
  protocol::Status Undo(size_t count);
  // Begins anew.
  protocol::Status Reset();

  // Of a chat in a session: another one from now on; its copy; its state as a pack, whose path is
  // given.
  protocol::Status UseSession(const std::string& name);
  protocol::Status ForkSession(const std::string& name);
  protocol::Result<std::string> SaveSession(const std::string& pack);
  // The value is the session's, which others have gone on with.
  bool settled(const ChatValue& value) const;
  // After a change of the conversation that was no turn: updates the transcript.
  protocol::Status Changed() const;

 private:
  struct Said;

  protocol::Result<Session*> Connect();
  bool in_session() const { return !settings_.session.empty(); }
  protocol::Status ReadSession();
  protocol::Status TakeForm(const protocol::SessionShowDone& told);
  protocol::Status CheckSessionUnchanged();
  template <typename Done>
  protocol::Result<Done> AskSession(const protocol::Args& args);
  void FollowSession(const protocol::RunDone& done);
  protocol::RunArgs ArgsOf(const std::optional<std::string>& user);
  TurnEnd Ask(const std::optional<std::string>& user);
  protocol::Result<StreamEnd> Stream(const protocol::RunArgs& args, Said& said,
                                     const SignalWatch& signals);
  TurnEnd Keep(const std::optional<std::string>& user, protocol::Result<StreamEnd>& end, Said& said,
               bool terminated);
  void KeepTurn(const std::optional<std::string>& user, protocol::ConversationMessage answer);
  int FinishTurn(const protocol::RunDone& done);
  int FailTurn(protocol::Error error);
  void Note(const std::string& text) const;

  ChatSettings& settings_;
  Output& output_;
  const bool fancy_;  // stderr can be drawn on
  bool plain_ = false;
  std::string model_path_;
  std::optional<Session> session_;
  Conversation conversation_;
  // Of the session: its system message, and turns that the next one takes the place of.
  std::optional<std::string> session_system_;
  uint64_t replaces_ = 0;
  std::vector<std::string> saved_packs_;  // by this chat: it may replace them
  std::optional<protocol::RunDone> last_;
  uint64_t asked_ = 0;               // turns asked for, for their seeds
  std::vector<std::string> warned_;  // by the last turn
};

// "story-k3" of "/models/story-k3.bin".
std::string ModelName(const std::string& path);

}  // namespace mk::client
