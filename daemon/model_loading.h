// Opening models and tokenizers with the engine.

#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/model_registry.h"
#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk::daemon {

// Reads the model's header for the size of its vocabulary and the label of its tokenizer, then
// finds the tokenizer. The model's weights are not read.
Result<LoadedTokenizer> LoadTokenizerOf(const ModelRef& ref);

// Tokenizers of models that are not loaded, for text ops; the few used last are kept. Thread-safe.
class TokenizerCache {
 public:
  Result<std::shared_ptr<const Tokenizer>> Get(const ModelRef& ref);

 private:
  struct Entry {
    ModelRef ref;
    FileIdentity identity;  // of the model file
    std::shared_ptr<const Tokenizer> tokenizer;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;  // the one used last at the end
};

}  // namespace mk::daemon
