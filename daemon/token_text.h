// The text of one token, as it is shown to people.

#pragma once

#include <cstdint>
#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace mk::daemon {

// The name of a special token, else its bytes, which need not be whole characters.
inline std::string TokenText(const Tokenizer& tokenizer, int32_t id) {
  std::string name = tokenizer.TokenName(id);
  return name.empty() ? tokenizer.Decode({&id, 1}) : name;
}

}  // namespace mk::daemon
