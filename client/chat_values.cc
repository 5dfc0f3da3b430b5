#include "client/chat_values.h"

#include <array>

#include "client/json_read.h"
#include "client/report.h"
#include "client/request_check.h"
#include "protocol/request_fields.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::RunArgs;
using protocol::Status;

constexpr std::array kValues = {
    ChatValue{"temp", "temperature", "0: always the likeliest token; higher: more varied"},
    ChatValue{"top-p", "top_p", "sample from the likeliest tokens of this total probability"},
    ChatValue{"top-k", "top_k", "sample from so many likeliest tokens; 0: all"},
    ChatValue{"min-p", "min_p", "leave out tokens less likely than this part of the likeliest"},
    ChatValue{"spec", "spec", "guess so many tokens ahead at most; the answer is the same"},
    ChatValue{"spec-rosa", "spec_rosa", "the same with a suffix automaton"},
    ChatValue{"typical-p", "typical_p", "sample from the tokens of most typical probability"},
    ChatValue{"repetition-penalty", "repetition_penalty",
              "divide the logits of tokens that came before; 1: off"},
    ChatValue{"frequency-penalty", "frequency_penalty",
              "taken off a token's logit for every time that it came before"},
    ChatValue{"presence-penalty", "presence_penalty",
              "taken off the logits of tokens that came before"},
    ChatValue{"dry-multiplier", "dry_multiplier",
              "penalty on tokens that would go on a repeat; 0: off"},
    ChatValue{"seed", "seed", "of the first answer; the next ones have the next ones"},
    ChatValue{"max-new", "max_new", "tokens of an answer at most"},
    ChatValue{"stop", "stop", "text that ends an answer"},
    ChatValue{"precision", "precision", "arithmetic: exact, bf16, q8, auto"},
    ChatValue{"thinking", "thinking", "let the model think before it answers: true, false"},
};

RunArgs Defaults() {
  RunArgs args;
  args.max_new = kChatMaxNew;
  return args;
}

// What the text may stand for; the field's type decides.
std::vector<Json> Readings(const std::string& text) {
  std::vector<Json> readings;
  const Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_number() || parsed.is_boolean()) readings.push_back(parsed);
  if (text == "on" || text == "off") readings.emplace_back(text == "on");
  readings.emplace_back(text);
  readings.push_back(Json::array({text}));
  return readings;
}

// Sets the field of this name to what it is where nobody says anything.
template <typename S>
void AssignDefault(std::string_view name, const S& defaults, S& target) {
  protocol::ForEachField<S>([&](const auto& field) {
    if constexpr (requires { field.name; }) {
      if (field.name == name) target.*field.member = defaults.*field.member;
    } else {
      AssignDefault(name, defaults.*field.member, target.*field.member);
    }
  });
}

bool Assigned(const ChatValue& value, const std::string& text, RunArgs& args) {
  for (const Json& reading : Readings(text)) {
    RunArgs changed = args;
    if (!AssignField(value.field, reading, changed).value_or(false)) continue;
    args = std::move(changed);
    return true;
  }
  return false;
}

}  // namespace

std::span<const ChatValue> ChatValues() {
  return kValues;
}

const ChatValue* FindChatValue(const std::string& name) {
  for (const ChatValue& value : kValues) {
    if (name == value.name) return &value;
  }
  return nullptr;
}

std::string ShowChatValue(const ChatValue& value, const RunArgs& args) {
  const Json json = ToJson(args);
  const auto found = json.find(value.field);
  if (found == json.end()) return "a new one for every answer";  // a seed
  if (found->is_array()) return found->empty() ? "none" : found->dump();
  return found->is_string() ? found->get<std::string>() : found->dump();
}

Status SetChatValue(const ChatValue& value, const std::string& text, RunArgs& args) {
  RunArgs changed = args;
  if (text == "default") {
    AssignDefault(value.field, Defaults(), changed);
  } else if (!Assigned(value, text, changed)) {
    return Fail(UsageError(
        "/" + std::string(value.name) + ": \"" + text + "\" is of the wrong type", value.doc));
  }
  RunArgs asked = changed;
  asked.prompt = "x";
  if (Status checked = CheckRequest(asked); !checked) return checked;
  args = std::move(changed);
  return {};
}

}  // namespace mk::client
