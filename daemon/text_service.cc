#include "daemon/text_service.h"

#include <utility>

#include "daemon/conversation.h"
#include "daemon/errors.h"
#include "daemon/token_text.h"

namespace mk::daemon {
namespace {

protocol::Result<EncodedText> Encode(const Tokenizer& tokenizer,
                                     const protocol::TokenizeArgs& args) {
  if (!args.chat) {
    auto encoded = args.plain ? tokenizer.EncodeText(args.text) : tokenizer.EncodePrompt(args.text);
    if (!encoded) return protocol::Fail(ToProtocol(encoded.error()));
    return std::move(*encoded);
  }
  auto options = ChatOptionsOf(args.dialect, args.thinking);
  if (!options) return protocol::Fail(options.error());
  auto encoded = tokenizer.RenderChat(SingleTurn(args.system, args.text), *options);
  if (!encoded) return protocol::Fail(ToProtocol(encoded.error()));
  return std::move(*encoded);
}

protocol::Result<protocol::Body> Tokenize(const Tokenizer& tokenizer,
                                          const protocol::TokenizeArgs& args) {
  auto encoded = Encode(tokenizer, args);
  if (!encoded) return protocol::Fail(encoded.error());
  protocol::TokenizeDone done;
  done.pieces.reserve(encoded->ids.size());
  for (const int32_t id : encoded->ids) done.pieces.push_back(TokenText(tokenizer, id));
  done.unk = encoded->unknown;
  done.ids = std::move(encoded->ids);
  return done;
}

protocol::Result<protocol::Body> Detokenize(const Tokenizer& tokenizer,
                                            const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && static_cast<size_t>(ids[i]) < tokenizer.vocab_size()) continue;
    return protocol::Fail(protocol::ErrorCode::kBadRequest,
                          "id " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
                              " is outside the vocabulary of " +
                              std::to_string(tokenizer.vocab_size()),
                          "ids are from 0 to " + std::to_string(tokenizer.vocab_size() - 1));
  }
  return protocol::DetokenizeDone{tokenizer.Decode(ids)};
}

}  // namespace

void TextService::HandleTokenize(ClientRequest& request) {
  auto args = std::make_shared<protocol::TokenizeArgs>(
      std::move(std::get<protocol::TokenizeArgs>(request.args)));
  Post(request, args->model,
       [args](const Tokenizer& tokenizer) { return Tokenize(tokenizer, *args); });
}

void TextService::HandleDetokenize(ClientRequest& request) {
  auto args = std::make_shared<protocol::DetokenizeArgs>(
      std::move(std::get<protocol::DetokenizeArgs>(request.args)));
  Post(request, args->model,
       [args](const Tokenizer& tokenizer) { return Detokenize(tokenizer, args->ids); });
}

void TextService::Post(ClientRequest& request, const protocol::ModelSelector& selector, Work work) {
  auto ref = ResolveSelector(core_, selector);
  if (!ref) return core_.clients.Finish(request, ref.error());
  request.model_path = ref->path;
  std::shared_ptr<const Tokenizer> loaded;
  if (const auto* entry = core_.registry.FindLoaded(*ref)) loaded = entry->loaded->tokenizer;
  auto task = [key = request.key, control = request.control, ref = *ref, loaded,
               tokenizers = tokenizers_, work = std::move(work), &events = core_.events]() mutable {
    if (control->cancelled.load()) return;  // answered already
    if (!loaded) {
      auto read = tokenizers->Get(ref);
      if (!read) {
        events.Push(WorkDone{key, protocol::Fail(ToModelError(read.error()))});
        return;
      }
      loaded = std::move(*read);
    }
    events.Push(WorkDone{key, work(*loaded)});
  };
  if (!core_.aux.Post(std::move(task))) {
    core_.clients.Finish(
        request,
        protocol::Error{protocol::ErrorCode::kBusy, "too many requests wait", "try again", {}});
  }
}

}  // namespace mk::daemon
