// tokenize and detokenize: on the aux thread, with the tokenizer of a loaded model or read alone.

#pragma once

#include <memory>

#include "daemon/core.h"
#include "daemon/model_loading.h"

namespace mk::daemon {

class TextService {
 public:
  explicit TextService(Core& core) : core_(core), tokenizers_(std::make_shared<TokenizerCache>()) {}

  void HandleTokenize(ClientRequest& request);
  void HandleDetokenize(ClientRequest& request);

 private:
  using Work = std::function<protocol::Result<protocol::Body>(const Tokenizer&)>;
  void Post(ClientRequest& request, const protocol::ModelSelector& selector, Work work);

  Core& core_;
  std::shared_ptr<TokenizerCache> tokenizers_;
};

// Chat options of a request. Errors: bad_request for a dialect that does not exist.
protocol::Result<ChatOptions> ChatOptionsOf(const std::string& dialect, bool thinking);
// The messages of a single chat turn.
std::vector<ChatMessage> SingleTurn(const std::optional<std::string>& system,
                                    const std::string& text);

}  // namespace mk::daemon
