// The id of a message that is refused before it could be decoded, so that the refusal reaches the
// request that it belongs to.

#pragma once

#include <cstdint>
#include <string_view>

namespace mk::protocol {

// Walks the head of a msgpack map while its values are numbers or text and returns the value of
// "id"; 0 where there is none to be found. Reads inside `bytes` only, allocates nothing.
uint64_t PeekId(std::string_view bytes);

}  // namespace mk::protocol
