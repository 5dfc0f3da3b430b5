// JSON as RFC 8259 has it and nothing else: no duplicate keys, no byte order mark, no NUL bytes, no
// comments, valid UTF-8, numbers that fit a double, bounded depth, nothing after the value.

#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace mk {

// Parses `text`. `what` names the text in messages ("config of model.bin"). Depth counts nested
// arrays and objects: {"a":[1]} has depth 2. Errors: kCorrupt. Thread-safe.
Result<nlohmann::json> ParseStrictJson(std::string_view text, const std::string& what,
                                       size_t max_depth = 64);

}  // namespace mk
