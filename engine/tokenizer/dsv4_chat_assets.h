// Chat assets: what a DeepSeek-V4 model was taught of the chat template, from a JSON file beside
// its tokenizer.json. The texts belong to a release of the model and must be those that it was
// trained with, so they are data.
//
//   chat_dialect  "dsv4" (the default), or "none" for models that were not taught to chat
//   effort        object: name of a thinking effort to the text that stands behind the begin mark
//                 of a prompt that asks for it; may be empty
// Other keys are left alone.

#pragma once

#include <map>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace mk {

inline constexpr uint64_t kMaxChatAssetBytes = uint64_t{1} << 20;

struct Dsv4ChatAssets {
  bool can_chat = true;
  std::map<std::string, std::string> effort;
};

// Parses and checks; `what` names the file. Errors: kCorrupt. Thread-safe.
Result<Dsv4ChatAssets> ParseDsv4ChatAssets(std::string_view text, const std::string& what);

}  // namespace mk
