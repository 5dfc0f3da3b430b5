// Tokenizers over a tokenizer.json: the whole vocabulary, or a remap of it.

#pragma once

#include <memory>
#include <string>

#include "engine/base/result.h"
#include "engine/tokenizer/dsv4_chat_assets.h"
#include "engine/tokenizer/dsv4_remap.h"
#include "engine/tokenizer/dsv4_vocabulary.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk {

// All ids of the vocabulary; `what` names the tokenizer.json. When the assets say that the model
// cannot chat, the template must be asked for by name, whatever marks the vocabulary has. Errors:
// kIncompatible when the marks of begin or end are missing.
Result<std::shared_ptr<const Tokenizer>> MakeDsv4Tokenizer(Dsv4Vocabulary vocabulary,
                                                           const std::string& what,
                                                           Dsv4ChatAssets assets = {});

// The kept ids of a remap. Errors: kIncompatible when the remap uses ids that `what` does not have.
Result<std::shared_ptr<const Tokenizer>> MakeDsv4RemapTokenizer(Dsv4Vocabulary vocabulary,
                                                                const Dsv4Remap& remap,
                                                                const std::string& what);

}  // namespace mk
