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

}  // namespace mk::daemon
