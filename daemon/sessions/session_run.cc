#include "daemon/sessions/session_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/common_length.h"
#include "daemon/conversation.h"
#include "daemon/errors.h"
#include "daemon/pack_lineage.h"
#include "daemon/run_task.h"
#include "engine/pack/pack_file.h"

namespace mk::daemon {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::RunArgs;
using protocol::SessionTurnRecord;

// A state that a shelf holds, for as long as somebody goes on from it.
SharedState WithModel(std::shared_ptr<const LoadedModel> loaded,
                      std::shared_ptr<const RunState> state) {
  if (!state) return nullptr;
  struct Held {
    std::shared_ptr<const LoadedModel> loaded;
    std::shared_ptr<const RunState> state;
  };
  auto held = std::make_shared<Held>(Held{std::move(loaded), std::move(state)});
  const RunState* inner = held->state.get();
  return {std::move(held), inner};
}

tl::unexpected<protocol::Error> Mismatch(const std::string& name, const std::string& what,
                                         const std::string& hint) {
  return Fail(ErrorCode::kIncompatible, "session " + name + " " + what, hint);
}

std::string Short(const std::string& fingerprint) {
  return fingerprint.substr(0, 12);
}

}  // namespace

SessionRun::SessionRun(SessionStore& store, std::string name,
                       std::optional<protocol::SessionRecord> record)
    : store_(store), name_(std::move(name)), created_(!record) {
  if (record) record_ = std::move(*record);
  if (created_) record_.created_ms = WallClockMs();
}

protocol::Status SessionRun::Settle(RunArgs& args) {
  chat_ = !args.raw && !args.ids;
  user_ = args.prompt;
  if (auto undone = TakeBack(args.session_undo); !undone) return undone;
  if (auto model = SettleModel(args); !model) return model;
  if (!record_.kind.empty() && chat_ != (record_.kind == protocol::kChatSession)) {
    return chat_ ? Mismatch(name_, "is a text that goes on, not a conversation",
                            "leave out --chat, or begin another session")
                 : Mismatch(name_, "is a conversation, not a text that goes on",
                            "say it with --chat, or begin another session");
  }
  if (record_.turns.empty() && !args.prompt && !args.ids) {
    return Fail(created_ ? ErrorCode::kNotFound : ErrorCode::kBadRequest,
                created_ ? "there is no session " + name_ + " to go on with"
                         : "session " + name_ + " has no text to go on with",
                "give it one: mk run --session " + name_ + " \"Once upon a time\"");
  }
  return SettleForm(args);
}

// The turns whose place this one takes.
protocol::Status SessionRun::TakeBack(uint64_t turns) {
  const size_t has = record_.turns.size();
  if (turns > has) {
    return Fail(ErrorCode::kBadRequest,
                "session " + name_ + " has " + std::to_string(has) +
                    (has == 1 ? " turn, so that " : " turns, so that ") + std::to_string(turns) +
                    " cannot be replaced",
                "`mk session info " + name_ + "` shows them");
  }
  replaced_ = turns;
  record_.turns.resize(has - static_cast<size_t>(turns));
  if (record_.turns.empty() && !record_.system) record_.kind.clear();
  return {};
}

protocol::Status SessionRun::SettleModel(RunArgs& args) const {
  if (args.model.model.empty()) {
    const protocol::ModelSelector given = args.model;
    args.model = record_.model;
    if (!given.vocab.empty()) args.model.vocab = given.vocab;
    if (!given.rank_file.empty()) args.model.rank_file = given.rank_file;
  }
  if (record_.precision.empty()) return {};
  if (args.precision == protocol::kAutoPrecision) args.precision = record_.precision;
  if (args.precision == record_.precision) return {};
  return Mismatch(name_, "is in the precision " + record_.precision + ", not " + args.precision,
                  "leave out --precision, or begin another session");
}

// What the first turn settles for all that follow.
protocol::Status SessionRun::SettleForm(RunArgs& args) {
  if (record_.turns.empty()) {
    record_.chunked_prefill = args.chunked_prefill;
    record_.dialect = chat_ ? args.dialect : "";
    record_.thinking = chat_ ? args.thinking : true;
  }
  if (!args.chunked_prefill && record_.chunked_prefill) {
    return Mismatch(name_, "reads its prompts in blocks",
                    "leave out --no-chunked-prefill, or begin another session");
  }
  if (chat_ && !args.dialect.empty() && args.dialect != record_.dialect) {
    return Mismatch(name_, "has the chat template " + record_.dialect + ", not " + args.dialect,
                    "leave out --dialect, or begin another session");
  }
  if (chat_ && !args.thinking && record_.thinking) {
    return Mismatch(name_, "lets the model think", "begin another session with --no-thinking");
  }
  args.chunked_prefill = record_.chunked_prefill;
  args.dialect = record_.dialect;
  args.thinking = record_.thinking;
  if (args.system) {
    record_.system = args.system->empty() ? std::nullopt : std::move(args.system);
    args.system.reset();
  }
  return {};
}

protocol::Status SessionRun::CheckModel(const LoadedModel& loaded) const {
  const ModelInfo& info = loaded.model->info();
  if (record_.fingerprint.empty() || record_.fingerprint == info.fingerprint) return {};
  const bool same_path = record_.model.model == info.path;
  const std::string own =
      record_.model.model.empty() ? "a model" : "the model " + record_.model.model;
  return Fail(ErrorCode::kIncompatiblePack,
              "session " + name_ + " belongs to " + own + " (" + Short(record_.fingerprint) +
                  "); " +
                  (same_path ? "that file is another one now (" : info.path + " is another one (") +
                  Short(info.fingerprint) + ")",
              "name the file of its model with --model, or begin another session");
}

void SessionRun::TakeModel(const LoadedModel& loaded, Precision precision, const RunArgs& args) {
  const ModelInfo& info = loaded.model->info();
  record_.kind = chat_ ? protocol::kChatSession : protocol::kTextSession;
  record_.model.model = info.path;
  record_.model.vocab = args.model.vocab;
  record_.model.rank_file = args.model.rank_file;
  record_.fingerprint = info.fingerprint;
  record_.precision = PrecisionName(precision);
  if (!chat_ || !record_.dialect.empty() || !loaded.tokenizer) return;
  if (const auto usual = loaded.tokenizer->default_dialect()) {
    record_.dialect = ChatDialectName(*usual);
  }
}

protocol::Result<PreparedRun> SessionRun::Prepare(std::shared_ptr<const LoadedModel> loaded,
                                                  Precision precision, RunArgs args) {
  if (auto same = CheckModel(*loaded); !same) return Fail(same.error());
  loaded_ = std::move(loaded);
  if (args.ids && loaded_->tokenizer) user_ = loaded_->tokenizer->Decode(*args.ids);
  TakeModel(*loaded_, precision, args);
  RunStart start;
  start.leave_state = true;
  auto given = chat_ ? GiveConversation(args, start) : GiveText(args, start);
  if (!given) return Fail(given.error());
  if (!start.bases.empty()) known_ = start.bases[0]->tokens.size();
  return PrepareRun(loaded_, precision, std::move(args), start);
}

// What is new comes on top of the state after the last turn. Where that is not kept, all tokens are
// the prompt, as they were read and generated.
protocol::Status SessionRun::GiveText(RunArgs& args, RunStart& start) {
  if (record_.turns.empty()) return {};
  const bool goes_on = !args.prompt && !args.ids;
  SharedState last = StateAfter(record_.turns.size());
  if (last && (!goes_on || !last->logits.empty())) {
    start.bases = {std::move(last)};
    start.append = true;
    return {};
  }
  std::vector<int32_t> ids = protocol::TokensAfter(record_, record_.turns.size());
  if (args.ids) ids.insert(ids.end(), args.ids->begin(), args.ids->end());
  if (args.prompt) {
    if (!loaded_->tokenizer) return Fail(ToProtocol(loaded_->tokenizer_error));
    auto encoded = loaded_->tokenizer->EncodeText(*args.prompt);
    if (!encoded) return Fail(ToProtocol(encoded.error()));
    ids.insert(ids.end(), encoded->ids.begin(), encoded->ids.end());
    args.prompt.reset();
  }
  if (SharedState base = LongestKept(ids)) start.bases = {std::move(base)};
  args.ids = std::move(ids);
  return {};
}

// The whole conversation is rendered, so that whatever has changed in it is read anew.
protocol::Status SessionRun::GiveConversation(RunArgs& args, RunStart& start) {
  std::vector<protocol::ConversationMessage> messages;
  if (record_.system) messages.push_back({"system", *record_.system, {}, {}});
  for (const SessionTurnRecord& turn : record_.turns) {
    messages.push_back({"user", turn.user.value_or(""), {}, {}});
    messages.push_back({"assistant", turn.content, turn.reasoning, turn.ids});
  }
  messages.push_back({"user", *user_, {}, {}});
  args.prompt.reset();
  args.messages = messages;
  if (record_.turns.empty() || !loaded_->tokenizer) return {};
  auto options = ChatOptionsOf(args.dialect, args.thinking);
  if (!options) return Fail(options.error());
  auto said = Conversation(std::move(messages));
  if (!said) return Fail(ToProtocol(said.error()));
  auto prompt = loaded_->tokenizer->RenderChat(*said, *options);
  if (!prompt) return Fail(ToProtocol(prompt.error()));
  if (SharedState base = LongestKept(prompt->ids)) start.bases = {std::move(base)};
  return {};
}

// The state after the last turn whose tokens the prompt begins with, if any is kept.
SharedState SessionRun::LongestKept(const std::vector<int32_t>& prompt) {
  for (size_t turns = record_.turns.size(); turns > 0; --turns) {
    if (record_.turns[turns - 1].pack == 0) continue;
    const std::vector<int32_t> tokens = protocol::TokensAfter(record_, turns);
    if (tokens.size() > prompt.size() || CommonLength(tokens, prompt) < tokens.size()) continue;
    SharedState state = StateAfter(turns);
    if (state && (tokens.size() < prompt.size() || !state->logits.empty())) return state;
  }
  return nullptr;
}

SharedState SessionRun::StateAfter(size_t turns) {
  SessionTurnRecord& turn = record_.turns[turns - 1];
  if (turn.pack == 0) return nullptr;
  const std::vector<int32_t> tokens = protocol::TokensAfter(record_, turns);
  if (auto state = loaded_->sessions->Find(turn.state_id); state && state->tokens == tokens) {
    return WithModel(loaded_, std::move(state));
  }
  return Reload(turn, tokens);
}

// From its pack. One that is not what the record says is set aside, and its tokens are read again.
SharedState SessionRun::Reload(SessionTurnRecord& turn, const std::vector<int32_t>& tokens) {
  const auto begin = std::chrono::steady_clock::now();
  LoadPackOptions options;
  options.precision = ParsePrecision(record_.precision);
  options.max_tokens = ContextLimit(loaded_->model->info());
  const std::string path = store_.PackPath(name_, turn.pack);
  const ModelInfo& info = loaded_->model->info();
  const uint64_t bytes = loaded_->model->state_bytes(tokens.size()) +
                         tokens.size() * sizeof(int32_t) + info.vocab * sizeof(float);
  auto state = loaded_->sessions->Read(turn.state_id, bytes, [&]() -> Result<RunState> {
    auto pack = LoadPack(path, *loaded_->model, options);
    if (!pack) return mk::Fail(pack.error());
    if (pack->info.state_id != turn.state_id || pack->contents.tokens != tokens) {
      return mk::Fail(mk::ErrorCode::kCorrupt, path + " is not the state of this turn");
    }
    return RunState{std::move(pack->sequence),
                    std::move(pack->contents.tokens),
                    std::move(pack->contents.logits),
                    {}};
  });
  if (!state) {
    GiveUp(turn, state.error());
    return nullptr;
  }
  reload_ms_ +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return WithModel(loaded_, std::move(*state));
}

// A pack that is damaged is not tried again; one that cannot be read now may be read later.
void SessionRun::GiveUp(SessionTurnRecord& turn, const Error& error) {
  warnings_.push_back("a state of the session cannot be used, so its text is read again: " +
                      error.message);
  const bool for_now = error.code == mk::ErrorCode::kIo ||
                       error.code == mk::ErrorCode::kOutOfMemory ||
                       error.code == mk::ErrorCode::kPermissionDenied;
  if (for_now) return;
  if (error.code != mk::ErrorCode::kNotFound) {
    store_.SetPackAside(name_, turn.pack, error.message);
  }
  turn.pack = 0;
  turn.state_id.clear();
  turn.pack_bytes = 0;
}

SessionTurnRecord SessionRun::TurnOf(const RunState& state, const protocol::RunDone& done) const {
  SessionTurnRecord turn;
  turn.user = user_;
  turn.content = done.text;
  turn.reasoning = done.reasoning;
  turn.finish_reason = done.finish_reason;
  turn.ids = done.ids;
  const auto prompt_end = state.tokens.end() - static_cast<ptrdiff_t>(done.ids.size());
  const std::vector<int32_t> prompt(state.tokens.begin(), prompt_end);
  const std::vector<int32_t> before = protocol::TokensAfter(record_, record_.turns.size());
  turn.common = CommonLength(before, prompt);
  turn.prompt.assign(prompt.begin() + static_cast<ptrdiff_t>(turn.common), prompt.end());
  turn.ended_ms = WallClockMs();
  return turn;
}

protocol::Status SessionRun::Keep(const SharedState& state, protocol::Body& last) {
  auto* done = std::get_if<protocol::RunDone>(&last);
  if (done == nullptr) return {};
  done->warnings.insert(done->warnings.end(), warnings_.begin(), warnings_.end());
  protocol::SessionRecord record = record_;
  SessionTurnRecord turn = TurnOf(*state, *done);
  // Of a text what is new, whichever way its beginning came.
  if (!chat_) done->prompt_ids = turn.prompt;
  const bool said = !turn.ids.empty() || (!chat_ && !turn.prompt.empty());
  // Nothing new, but a state that was not kept before.
  const bool made_again =
      !said && !chat_ && replaced_ == 0 && !record.turns.empty() && record.turns.back().pack == 0;
  if (said) {
    record.turns.push_back(std::move(turn));
    record.used_ms = record.turns.back().ended_ms;
  }
  if (said || made_again) {
    const auto write = [&](const std::string& path) {
      return SavePack(path, *loaded_->model, *state->sequence,
                      {state->tokens, state->logits, ClosingLineage(state->closing)});
    };
    auto kept = store_.Keep(name_, record, write);
    if (!kept) return Fail(ToPackError(kept.error()));
    loaded_->sessions->Put(record.turns.back().state_id, *state);
  }
  protocol::SessionStep step;
  step.name = name_;
  step.turns = record.turns.size();
  step.tokens = protocol::CountTokens(record);
  step.created = created_ && said;
  step.kept = said;
  step.known = known_;
  step.reload_ms = reload_ms_;
  if (!record.turns.empty()) step.state_id = record.turns.back().state_id;
  done->session = std::move(step);
  return {};
}

}  // namespace mk::daemon
