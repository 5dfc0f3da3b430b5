// One message as an msgpack object, after Scan() has passed its bytes.

#pragma once

#include <cstdint>
#include <msgpack.hpp>
#include <string_view>

#include "protocol/error.h"

namespace mk::protocol {

// The object points into `bytes` for its text and binaries. The top is a map. `id`: see Scan().
// Errors: kBadRequest.
Result<msgpack::object_handle> UnpackMessage(std::string_view bytes, uint64_t* id = nullptr);

// Value of a key of a map; null when it is missing.
const msgpack::object* FindKey(const msgpack::object& map, std::string_view key);

}  // namespace mk::protocol
