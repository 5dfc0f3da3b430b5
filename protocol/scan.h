// First look at a message: walks the raw msgpack bytes and refuses what breaks a limit, without
// allocating anything whose size the message claims.

#pragma once

#include <cstdint>
#include <string_view>

#include "protocol/error.h"
#include "protocol/limits.h"

namespace mk::protocol {

// Passes exactly one msgpack value that fills `bytes`, within `limits`: size, depth, entries of
// maps, items of arrays, lengths of text and binaries, values in total; text well-formed UTF-8; map
// keys text; no extension types. Errors: kBadRequest, naming the limit or the field ("prompt")
// and, for ill-formed text, the byte offset in it (details: field, byte_offset).
// `id`, if given, receives the integer under the top map's key "id" as soon as it is seen, so that
// a refused request can be answered under its id; it is left alone when there is none.
Status Scan(std::string_view bytes, const Limits& limits = kLimits, uint64_t* id = nullptr);

}  // namespace mk::protocol
