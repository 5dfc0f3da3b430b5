#include "client/map_item.h"

#include <algorithm>
#include <utility>

#include "client/command_line.h"
#include "client/json_read.h"
#include "client/report.h"
#include "client/request_check.h"
#include "protocol/request_fields.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::RunArgs;
using protocol::Status;

constexpr size_t kDepth = protocol::kLimits.depth;

// What of a run is no matter of an item: the form of the answer.
constexpr std::string_view kNotForItems[] = {
    "logprobs",    "want_logits",       "want_hidden",  "want_routes", "lens",  "lens_top",
    "lens_layers", "want_hidden_stats", "want_experts", "stats",       "window"};

Status TakeField(const std::string& name, const Json& json, RunArgs& args) {
  std::optional<bool> assigned;
  if (name == "chat") {
    bool chat = false;
    assigned = Assign(json, chat);
    args.raw = !chat;
  } else if (name == "stop" && json.is_string()) {
    args.stop = {json.get<std::string>()};
    assigned = true;
  } else if (std::find(std::begin(kNotForItems), std::end(kNotForItems), name) ==
             std::end(kNotForItems)) {
    assigned = AssignField(name, json, args);
  }
  if (!assigned) {
    return Fail(
        UsageError("unknown field \"" + name + "\"",
                   "an item has prompt, ids or messages, id, chat, and the fields of `options` in "
                   "`mk run --json`"));
  }
  if (!*assigned) return Fail(UsageError("the value of \"" + name + "\" is of the wrong type"));
  return {};
}

// A prompt of ids is taken as it is, and a system message asks for a chat turn, as in `mk run`.
Status SettleChat(const Json& object, RunArgs& args) {
  const bool says_how = object.contains("chat") || object.contains("raw");
  const bool of_chat =
      object.contains("system") || object.contains("thinking") || object.contains("dialect");
  if (args.ids) {
    const bool chat = of_chat || (says_how && !args.raw);
    if (chat) return Fail(UsageError("\"ids\" excludes a chat turn", "give \"prompt\" instead"));
    args.raw = true;
    args.system.reset();
    args.thinking = true;
    args.dialect.clear();
  } else if ((of_chat || args.messages) && !says_how) {
    args.raw = false;
  } else if (args.raw && says_how && !of_chat) {
    args.system.reset();
    args.thinking = true;
    args.dialect.clear();
  }
  return {};
}

Status ReadObject(const std::string& text, MapItem& item, RunArgs& args) {
  if (JsonDepth(text) > kDepth) {
    return Fail(UsageError("the JSON is nested too deeply",
                           "at most " + std::to_string(kDepth) + " levels"));
  }
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return Fail(UsageError("not a JSON object", "each line is one: {\"prompt\": \"...\"}"));
  }
  if (const auto id = object.find("id"); id != object.end()) item.id = *id;
  for (const auto& [name, value] : object.items()) {
    if (name == "id") continue;
    if (Status taken = TakeField(name, value, args); !taken) return taken;
  }
  if (int{args.prompt.has_value()} + int{args.ids.has_value()} + int{args.messages.has_value()} !=
      1) {
    return Fail(UsageError("an item has one of \"prompt\", \"ids\" and \"messages\"",
                           "for example {\"prompt\": \"Once upon a time\"}"));
  }
  item.own_model = object.contains("model");
  MakeAbsolute(args.model);
  args.memory = PackArgument(args.memory);
  args.save = PackArgument(args.save);
  return SettleChat(object, args);
}

Status ReadRecord(MapForm form, Record& record, MapItem& item, RunArgs& args) {
  if (record.too_long) {
    return Fail(UsageError("longer than " + std::to_string(MostBytesOf(form)) + " bytes",
                           "give a shorter prompt"));
  }
  if (form == MapForm::kJson) return ReadObject(record.bytes, item, args);
  // Lines that were written elsewhere.
  if (form == MapForm::kLines && record.bytes.ends_with('\r')) record.bytes.pop_back();
  if (record.bytes.empty()) {
    return Fail(UsageError("the prompt is empty", "give some text"));
  }
  args.prompt = std::move(record.bytes);
  return {};
}

}  // namespace

char SeparatorOf(MapForm form) {
  return form == MapForm::kNul ? '\0' : '\n';
}

size_t MostBytesOf(MapForm form) {
  return form == MapForm::kJson ? protocol::kLimits.message_bytes : protocol::kLimits.text_bytes;
}

bool IsBlank(MapForm form, const Record& record) {
  return form == MapForm::kJson && !record.too_long &&
         record.bytes.find_first_not_of(" \t\r") == std::string::npos;
}

MapItem ReadItem(const MapSettings& settings, uint64_t index, Record record) {
  MapItem item;
  item.index = index;
  RunArgs args = settings.args;
  // Of the item's place, not of the order in which items happen to run. Wraps around.
  if (args.seed) *args.seed += index;
  Status read = ReadRecord(settings.input, record, item, args);
  item.args = std::move(args);
  if (read) read = CheckRequest(item.args);
  if (!read) item.error = std::move(read.error());
  return item;
}

}  // namespace mk::client
