// The values that can be changed in the middle of a chat: /temp 0.7

#pragma once

#include <span>
#include <string>

#include "protocol/messages.h"

namespace mk::client {

struct ChatValue {
  const char* name;   // "temp"
  const char* field;  // of RunArgs, "temperature"
  const char* doc;
};

std::span<const ChatValue> ChatValues();
// Nothing: there is none of this name.
const ChatValue* FindChatValue(const std::string& name);

// As it would be typed.
std::string ShowChatValue(const ChatValue& value, const protocol::RunArgs& args);
// Sets it from what was typed; "default" is what `mk chat` begins with. Judged by the rules of the
// protocol. Errors: kBadRequest.
protocol::Status SetChatValue(const ChatValue& value, const std::string& text,
                              protocol::RunArgs& args);

// What a chat begins with where the command line says nothing else.
inline constexpr uint32_t kChatMaxNew = 1024;

}  // namespace mk::client
