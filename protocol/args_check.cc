#include "protocol/args_check.h"

#include "protocol/job_record.h"

namespace mk::protocol {
namespace {

tl::unexpected<Error> Bad(std::string message, std::string hint = {}) {
  return Fail(ErrorCode::kBadRequest, std::move(message), std::move(hint));
}

}  // namespace

Status CheckArgs(const RunArgs& args) {
  const int prompts =
      int{args.prompt.has_value()} + int{args.ids.has_value()} + int{args.messages.has_value()};
  if (prompts > 1) {
    return Bad("run: more than one of `prompt`, `ids` and `messages` is given", "give one of them");
  }
  const bool in_session = !args.session.empty();
  if (in_session && args.messages) {
    return Bad("run: a session has its own messages",
               "give what is said next as `prompt`; session_undo takes turns back");
  }
  if (args.session_undo > 0 && !in_session) {
    return Bad("run: `session_undo` needs a session", "give `session`");
  }
  if (in_session && !(args.memory.empty() && args.save.empty())) {
    return Bad("run: `session` excludes `memory` and `save`",
               "session_restore makes a session of a pack, session_save a pack of a session");
  }
  if (prompts == 0 && !in_session && args.memory.empty()) {
    return Bad("run: there is no prompt",
               "give `prompt` (text), `ids` (token ids) or `messages` (a conversation)");
  }
  if (prompts == 0 && !args.raw) {
    return Bad("run: a chat turn on top of `memory` needs a message",
               "give `prompt` or `messages`, or go on from the text of the pack with `raw`");
  }
  if (args.ids && args.ids->empty()) return Bad("run: `ids` is empty", "give at least one id");
  if (args.messages && args.messages->empty()) {
    return Bad("run: `messages` is empty", "give at least one message");
  }
  const bool chat = !args.ids && !args.raw;
  if (!chat && args.system) {
    return Bad("run: `system` needs a chat turn", "leave out `raw` and `ids`, or `system`");
  }
  if (args.messages && args.system) {
    return Bad("run: `system` and `messages` are both given",
               "give a message with the role \"system\"");
  }
  if (!chat && !args.dialect.empty()) {
    return Bad("run: `dialect` needs a chat turn", "leave out `raw` and `ids`, or `dialect`");
  }
  return {};
}

Status CheckArgs(const ScoreArgs& args) {
  if (args.texts.empty()) return Bad("score: `texts` is empty", "give at least one text");
  for (size_t i = 0; i < args.texts.size(); ++i) {
    const ScoreItem& item = args.texts[i];
    const std::string name = "score: `texts[" + std::to_string(i) + "]`";
    if (item.text.has_value() == item.ids.has_value()) {
      return Bad(name + " needs one of `text` and `ids`", "give one of them");
    }
    if (item.ids && item.ids->empty()) return Bad(name + " has no ids", "give at least one id");
    if (item.ids && !item.context.empty()) {
      return Bad(name + ": `context` stands before a `text`", "give `context_ids` before `ids`");
    }
    if (item.text && !item.context_ids.empty()) {
      return Bad(name + ": `context_ids` stand before `ids`", "give `context` before a `text`");
    }
  }
  return {};
}

Status CheckArgs(const TokenizeArgs& args) {
  if (args.chat && args.plain) {
    return Bad("tokenize: `chat` and `plain` exclude each other", "leave out one of them");
  }
  if (!args.chat && (args.system || !args.dialect.empty())) {
    return Bad("tokenize: `system` and `dialect` need `chat`", "add `chat`");
  }
  return {};
}

namespace {

Status CheckItems(const EvalItems& items, const std::string& op) {
  if (!items.tasks.empty() || !items.texts.empty()) return {};
  return Bad(op + ": there is nothing to measure", "give `tasks` or `texts`");
}

}  // namespace

Status CheckArgs(const EvalArgs& args) {
  return CheckItems(args.items, "eval");
}

Status CheckArgs(const CompareArgs& args) {
  if (args.items.stream_fallback) {
    return Bad("compare: `stream_fallback` is not for comparisons",
               "leave it out; mk eval takes it for one model");
  }
  return CheckItems(args.items, "compare");
}

Status CheckArgs(const JobStartArgs& args) {
  const JobSpec& spec = args.spec;
  const int kinds = KindsIn(spec);
  if (kinds == 1 && spec.eval) return CheckArgs(*spec.eval);
  if (kinds == 1 && spec.compare) return CheckArgs(*spec.compare);
  if (kinds == 1) return {};
  return Bad(kinds == 0 ? "job_start: there is nothing to do"
                        : "job_start: more than one kind of work is given",
             "give one of `verify`, `build`, `bench`, `absorb`, `shadow`, `eval` and `compare`");
}

Status CheckArgs(const JobRemoveArgs& args) {
  if (args.ids.empty() != args.ended) {
    return Bad("job_remove: `ids` or `ended`, not both and not neither", "give one of them");
  }
  return {};
}

}  // namespace mk::protocol
