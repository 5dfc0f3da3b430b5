// Versions of the protocol and the handshake.

#pragma once

#include <cstdint>
#include <string_view>

#include "protocol/error.h"

namespace mk::protocol {

// Range of protocol versions that this build speaks. A request carries the version that it is
// written in; hello has the same form in every version.
inline constexpr uint32_t kProtocolMin = 1;
inline constexpr uint32_t kProtocolMax = 1;

// "0.1.0"
std::string_view Version();
// Version and state of the sources: "0.1.0+1a2b3c4d5e6f". Equal builds have equal ids.
std::string_view BuildId();

enum class Side { kClient, kDaemon };

// The highest version that both ranges hold. Error: kUnsupportedVersion; the message says which
// side is old, the hint names the command that mends it. `peer` is whose range and build id are
// given; the other side is this build.
Result<uint32_t> Negotiate(Side peer, uint32_t peer_min, uint32_t peer_max,
                           std::string_view peer_build);

}  // namespace mk::protocol
