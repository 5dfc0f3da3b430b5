#include "client/chat.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/answer_text.h"
#include "client/command_line.h"
#include "client/job.h"
#include "client/report.h"
#include "client/run_report.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

// For a daemon that is leaving to be gone, so that another one can be started.
constexpr milliseconds kLeaving{15'000};
constexpr int kLeavingPauseMs = 200;

}  // namespace

std::string ModelName(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  if (name.ends_with(".bin")) name.resize(name.size() - 4);
  return name;
}

// What a turn has shown so far.
struct Chat::Said {
  AnswerText shown;
  ProgressLine progress;
  protocol::ConversationMessage answer{"assistant", {}, {}, {}};
  bool quiet = false;

  void Take(const protocol::Body& body) {
    if (const auto* step = std::get_if<protocol::Progress>(&body)) progress.Show(*step);
    const auto* token = std::get_if<protocol::TokenChunk>(&body);
    if (token == nullptr) return;
    progress.Clear();
    answer.ids.push_back(token->id);
    if (token->channel == "reasoning") answer.reasoning += token->text;
    if (token->channel == "answer" || token->channel.empty()) answer.content += token->text;
    if (!quiet) shown.Take(*token);
  }
};

Chat::Chat(ChatSettings& settings, Output& output)
    : settings_(settings), output_(output), fancy_(IsFancyTerminal(STDERR_FILENO)) {}

Result<Session*> Chat::Connect() {
  if (!session_) {
    Result<Session> session = OpenSession(settings_.access);
    if (!session) return Fail(std::move(session.error()));
    session_.emplace(std::move(*session));
  }
  return &*session_;
}

// States may be large, and disks slow.
constexpr milliseconds kSessionPatience{120'000};

template <typename Done>
Result<Done> Chat::AskSession(const protocol::Args& args) {
  for (bool again = false;; again = true) {
    Result<Session*> session = Connect();
    if (!session) return Fail(std::move(session.error()));
    auto done = AskFor<Done>(**session, args, kSessionPatience);
    if (done || done.error().code != ErrorCode::kUnreachable || again) return done;
    session_.reset();  // the daemon left since the last turn
  }
}

// What the daemon has of the session takes the place of what was known here.
Status Chat::ReadSession() {
  auto told = AskSession<protocol::SessionShowDone>(protocol::SessionShowArgs{settings_.session});
  if (!told && told.error().code != ErrorCode::kNotFound) return Fail(std::move(told.error()));
  conversation_.turns.clear();
  session_system_.reset();
  if (!told) return {};
  session_system_ = told->system;
  if (!conversation_.system) conversation_.system = told->system;
  for (protocol::SessionTurn& turn : told->turns) {
    conversation_.turns.push_back(
        {std::move(turn.user),
         {"assistant", std::move(turn.content), std::move(turn.reasoning), {}}});
  }
  const protocol::SessionInfo& info = told->session;
  if (settings_.args.model.model.empty()) settings_.args.model.model = info.model;
  if (settings_.args.precision == protocol::kAutoPrecision && !info.precision.empty()) {
    settings_.args.precision = info.precision;
  }
  if (info.kind == protocol::kTextSession) settings_.plain = true;
  if (told->turns.empty() || info.kind != protocol::kChatSession) return {};
  return TakeForm(*told);
}

// The form of the conversation is the session's; another one was asked for in vain.
Status Chat::TakeForm(const protocol::SessionShowDone& told) {
  protocol::RunArgs& args = settings_.args;
  const std::string hint = "leave it out, or begin another session";
  if (!args.dialect.empty() && args.dialect != told.dialect) {
    return Fail(ErrorCode::kIncompatible,
                "session " + settings_.session + " has the chat template " + told.dialect +
                    ", not " + args.dialect,
                "--dialect: " + hint);
  }
  if (!args.thinking && told.thinking) {
    return Fail(ErrorCode::kIncompatible, "session " + settings_.session + " lets the model think",
                "--no-thinking: " + hint);
  }
  args.dialect = told.dialect;
  args.thinking = told.thinking;
  return {};
}

bool Chat::settled(const ChatValue& value) const {
  if (!in_session() || conversation_.turns.empty()) return false;
  const std::string_view field = value.field;
  return field == "precision" || field == "thinking";
}

Status Chat::UseSession(const std::string& name) {
  // A name that was mistyped is no new session.
  auto known = AskSession<protocol::SessionShowDone>(protocol::SessionShowArgs{name});
  if (!known) return Fail(std::move(known.error()));
  const std::string before = std::exchange(settings_.session, name);
  const ChatSettings settings = settings_;
  const Conversation said = std::exchange(conversation_, {});
  settings_.args.model = {};
  settings_.args.precision = protocol::kAutoPrecision;
  settings_.args.dialect.clear();
  settings_.args.thinking = true;
  settings_.plain = false;
  Status opened = Open();
  if (opened) return {};
  settings_ = settings;
  settings_.session = before;
  conversation_ = said;
  return opened;
}

Status Chat::ForkSession(const std::string& name) {
  auto done =
      AskSession<protocol::SessionForkDone>(protocol::SessionForkArgs{settings_.session, name, {}});
  if (!done) return Fail(std::move(done.error()));
  return {};
}

Result<std::string> Chat::SaveSession(const std::string& pack) {
  const std::string name = pack.empty() ? settings_.session : PackArgument(pack);
  const bool ours = std::find(saved_packs_.begin(), saved_packs_.end(), name) != saved_packs_.end();
  auto done = AskSession<protocol::SessionSaveDone>(
      protocol::SessionSaveArgs{settings_.session, name, ours});
  if (!done) return Fail(std::move(done.error()));
  if (!ours) saved_packs_.push_back(name);
  return std::move(done->path);
}

// Turns that somebody else has said in the session are not ours to take back.
Status Chat::CheckSessionUnchanged() {
  const size_t known = conversation_.turns.size();
  const std::string last = known > 0 ? conversation_.turns.back().answer.content : std::string();
  if (Status read = ReadSession(); !read) return read;
  const std::vector<Turn>& turns = conversation_.turns;
  if (turns.size() == known && (known == 0 || turns.back().answer.content == last)) return {};
  return Fail(ErrorCode::kBusy,
              "somebody else has changed session " + settings_.session + ": it has " +
                  std::to_string(turns.size()) + (turns.size() == 1 ? " turn" : " turns") + " now",
              "/show shows it; give the command again if it is still what you want");
}

Status Chat::Undo(size_t count) {
  if (in_session()) {
    if (Status same = CheckSessionUnchanged(); !same) return same;
    auto done =
        AskSession<protocol::SessionUndoDone>(protocol::SessionUndoArgs{settings_.session, count});
    if (!done) return Fail(std::move(done.error()));
  }
  conversation_.turns.resize(conversation_.turns.size() - count);
  return Changed();
}

Status Chat::Reset() {
  if (in_session() && !conversation_.turns.empty()) {
    if (Status same = CheckSessionUnchanged(); !same) return same;
    auto done =
        AskSession<protocol::SessionUndoDone>(protocol::SessionUndoArgs{settings_.session, {}});
    if (!done) return Fail(std::move(done.error()));
  }
  conversation_.turns.clear();
  return Changed();
}

Status Chat::Open() {
  if (in_session()) {
    if (Status read = ReadSession(); !read) return read;
  }
  Result<Session*> session = Connect();
  if (!session) return Fail(std::move(session.error()));
  const protocol::RunArgs& args = settings_.args;
  protocol::LoadArgs load;
  load.model = args.model;
  load.precision = args.precision;
  load.stream = args.stream;
  auto loaded = RunJobFor<protocol::LoadDone>(**session, std::move(load), output_, !settings_.json);
  if (!loaded) {
    session_.reset();
    return Fail(std::move(loaded.error()));
  }
  const bool has_template = !loaded->model.chat_dialect.empty() || !args.dialect.empty();
  const bool plain = settings_.plain || !has_template;
  const std::string name = ModelName(loaded->model.path);
  if (plain && (conversation_.system || !args.thinking)) {
    return Fail(
        ErrorCode::kUnsupported,
        name + " is read as plain text, which has no system message and no thinking",
        "leave out --system and --no-thinking (/system -), or name a template: --dialect k3");
  }
  model_path_ = loaded->model.path;
  plain_ = plain;
  if (!has_template && !settings_.plain) {
    Note(name + " has no chat template: it goes on with your text");
  } else if (settings_.interactive) {
    Note(name + ", " + loaded->precision);
  }
  return {};
}

Status Chat::ChangeModel(const std::string& model) {
  const protocol::ModelSelector before = std::exchange(settings_.args.model, {model, {}, {}});
  Status opened = Open();
  if (!opened) settings_.args.model = before;
  return opened;
}

protocol::RunArgs Chat::ArgsOf(const std::optional<std::string>& user) {
  protocol::RunArgs args = settings_.args;
  args.raw = plain_;
  if (in_session()) {
    args.session = settings_.session;
    args.session_undo = replaces_;
    args.prompt = user;
    if (conversation_.system != session_system_) args.system = conversation_.system.value_or("");
  } else {
    args.messages = plain_ ? conversation_.PlainMessages(user) : conversation_.Messages(user);
  }
  if (plain_) args.dialect.clear();
  // Of the order of the answers alone, so that a chat can be repeated. Wraps around.
  if (args.seed) *args.seed += asked_;
  ++asked_;
  args.stats = settings_.stats || settings_.json;
  return args;
}

TurnEnd Chat::Say(const std::string& text) {
  return Ask(plain_ ? conversation_.Joined(text) : text);
}

TurnEnd Chat::More() {
  return Ask(std::nullopt);
}

TurnEnd Chat::Retry() {
  if (in_session()) {
    if (Status same = CheckSessionUnchanged(); !same) return {FailTurn(same.error()), false};
  }
  Turn last = std::move(conversation_.turns.back());
  conversation_.turns.pop_back();
  const size_t before = conversation_.turns.size();
  replaces_ = in_session() ? 1 : 0;
  const TurnEnd end = Ask(last.user);
  replaces_ = 0;
  if (conversation_.turns.size() == before) conversation_.turns.push_back(std::move(last));
  return end;
}

Result<StreamEnd> Chat::Stream(const protocol::RunArgs& args, Said& said,
                               const SignalWatch& signals) {
  StreamOptions options;
  options.timeout = milliseconds(args.timeout_ms);
  options.window = args.window;
  const Deadline give_up = After(kLeaving);
  for (bool again = false;; again = true) {
    Result<Session*> session = Connect();
    if (!session) return Fail(std::move(session.error()));
    auto end =
        RunStream(**session, args, options, output_, signals, [&](const protocol::Body& body) {
          said.Take(body);
          return Status();
        });
    // Without an end the request is still open in the daemon.
    const bool whole = end && end->body;
    if (!whole) session_.reset();
    if (!said.answer.ids.empty() || (end && end->interrupted)) return end;
    // The daemon left, between two turns or just now; nothing was lost.
    const auto* error = whole ? std::get_if<protocol::Error>(&*end->body) : nullptr;
    const bool leaving = error != nullptr && error->code == ErrorCode::kShuttingDown;
    const bool gone = !end && end.error().code == ErrorCode::kUnreachable && !again;
    if (!gone && !(leaving && Clock::now() < give_up)) return end;
    session_.reset();
    if (leaving) ::poll(nullptr, 0, kLeavingPauseMs);
  }
}

TurnEnd Chat::Ask(const std::optional<std::string>& user) {
  const protocol::RunArgs args = ArgsOf(user);
  Said said{AnswerText(output_, fancy_), ProgressLine(fancy_ && !settings_.json)};
  said.quiet = settings_.json;
  // What is left is written without the watch: Ctrl-C ends mk when nobody reads it.
  bool terminated = false;
  auto end = [&] {
    const SignalWatch signals;
    auto streamed = Stream(args, said, signals);
    terminated = signals.terminated();
    return streamed;
  }();
  said.progress.Clear();
  said.shown.EndReasoning();
  return Keep(user, end, said, terminated);
}

TurnEnd Chat::Keep(const std::optional<std::string>& user, Result<StreamEnd>& end, Said& said,
                   bool terminated) {
  if (end && end->output_closed) {
    FinishOutput(output_, protocol::kExitFailed);
    LeaveOnClosedPipe();
  }
  const bool interrupted = end && end->interrupted;
  TurnEnd result;
  result.leave = terminated || (interrupted && !end->body);
  auto* done = end && end->body ? std::get_if<protocol::RunDone>(&*end->body) : nullptr;
  const bool something = !said.answer.content.empty() || !said.answer.reasoning.empty();
  if (done != nullptr) {
    const bool kept =
        in_session() ? done->session && done->session->kept : !interrupted || !done->ids.empty();
    if (kept) KeepTurn(user, {"assistant", done->text, done->reasoning, done->ids});
    if (in_session()) FollowSession(*done);
    last_ = std::move(*done);
    if (!settings_.json) output_.Write(last_->rest);
    result.code = FinishTurn(*last_);
  } else {
    if (something && !in_session()) KeepTurn(user, std::move(said.answer));
    if (!settings_.json && !output_.at_line_start()) output_.Write("\n");
    const auto* failed = end && end->body ? std::get_if<protocol::Error>(&*end->body) : nullptr;
    if (!end) {
      result.code = FailTurn(std::move(end.error()));
    } else if (failed != nullptr && !(interrupted && failed->code == ErrorCode::kCancelled)) {
      result.code = FailTurn(*failed);
    }
  }
  if (interrupted) {
    result.code = protocol::kExitInterrupted;
    const bool kept = something && (done != nullptr || !in_session());
    if (settings_.interactive) Note(kept ? "stopped; what was said is kept" : "stopped");
  }
  if (Status saved = Changed(); !saved) result.code = ReportError(saved.error());
  return result;
}

void Chat::KeepTurn(const std::optional<std::string>& user, protocol::ConversationMessage answer) {
  conversation_.turns.push_back({user, std::move(answer)});
}

// Somebody else may have gone on with the session, or a turn was kept whose end was not heard.
void Chat::FollowSession(const protocol::RunDone& done) {
  if (!done.session) return;
  session_system_ = done.session->kept ? conversation_.system : session_system_;
  if (done.session->created && settings_.interactive) {
    Note("session " + settings_.session + " is new");
  }
  if (done.session->turns == conversation_.turns.size()) return;
  if (Status read = ReadSession(); !read) ReportError(read.error());
}

int Chat::FinishTurn(const protocol::RunDone& done) {
  if (settings_.json) {
    Json json = {{"turn", conversation_.turns.size()}};
    json.update(RunDoneJson(done));
    output_.Write(JsonLine(json));
  } else if (!output_.at_line_start() || done.text.empty()) {
    output_.Write("\n");
  }
  if (!output_.Drain()) return FinishOutput(output_, protocol::kExitFailed);
  for (const std::string& warning : done.warnings) {
    const bool known = std::find(warned_.begin(), warned_.end(), warning) != warned_.end();
    if (!known) std::fputs(("mk: warning: " + warning + "\n").c_str(), stderr);
  }
  warned_ = done.warnings;
  if (done.finish_reason == "length" && settings_.interactive && !settings_.json) {
    const std::string most = std::to_string(done.options.max_new);
    Note(plain_ ? "cut after " + most + " tokens; /more goes on"
                : "cut after " + most + " tokens; /max-new N gives more");
  }
  if (settings_.stats && !settings_.json) Note(RunStatsText(done));
  if (!done.trust.degraded) return protocol::kExitDone;
  std::fputs("mk: the answer is degraded: parts of the model were not used (see --json, trust)\n",
             stderr);
  return protocol::kExitDegraded;
}

int Chat::FailTurn(protocol::Error error) {
  if (error.code == ErrorCode::kContextOverflow) {
    error.message = "the conversation is too long: " + error.message;
    error.hint = settings_.interactive
                     ? "/undo takes back turns, /reset begins anew, /max-new N asks for less"
                     : "begin a new conversation, or ask for less with --max-new";
  }
  if (settings_.json) {
    Json json = {{"turn", conversation_.turns.size() + 1}};
    json.update(ErrorToJson(error));
    output_.Write(JsonLine(json));
  }
  output_.Drain();
  return ReportError(error);
}

Status Chat::Save(const std::string& path) const {
  std::optional<TranscriptOrigin> origin;
  if (last_) origin = TranscriptOrigin{last_->trust, last_->options};
  return SaveTranscript(path, conversation_, origin);
}

Status Chat::Changed() const {
  return settings_.save.empty() ? Status() : Save(settings_.save);
}

void Chat::Note(const std::string& text) const {
  output_.Drain();
  std::fputs(fancy_ ? ("\x1b[2m[" + text + "]\x1b[0m\n").c_str() : ("mk: " + text + "\n").c_str(),
             stderr);
}

}  // namespace mk::client
