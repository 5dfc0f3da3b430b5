#include "protocol/args_check.h"

namespace mk::protocol {
namespace {

tl::unexpected<Error> Bad(std::string message, std::string hint = {}) {
  return Fail(ErrorCode::kBadRequest, std::move(message), std::move(hint));
}

}  // namespace

Status CheckArgs(const RunArgs& args) {
  if (args.prompt && args.ids) {
    return Bad("run: `prompt` and `ids` are both given", "give one of them");
  }
  if (!args.prompt && !args.ids) {
    return Bad("run: there is no prompt", "give `prompt` (text) or `ids` (token ids)");
  }
  if (args.ids && args.ids->empty()) return Bad("run: `ids` is empty", "give at least one id");
  const bool chat = args.prompt && !args.raw;
  if (!chat && args.system) {
    return Bad("run: `system` needs a chat turn", "leave out `raw` and `ids`, or `system`");
  }
  if (!chat && !args.dialect.empty()) {
    return Bad("run: `dialect` needs a chat turn", "leave out `raw` and `ids`, or `dialect`");
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

}  // namespace mk::protocol
