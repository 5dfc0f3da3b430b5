#include "protocol/version.h"

#include <algorithm>
#include <string>

namespace mk::protocol {
namespace {

std::string RangeText(uint32_t low, uint32_t high) {
  std::string text = std::to_string(low);
  if (high != low) text += " to " + std::to_string(high);
  return text;
}

}  // namespace

Result<uint32_t> Negotiate(Side peer, uint32_t peer_min, uint32_t peer_max,
                           std::string_view peer_build) {
  if (peer_min > peer_max) {
    return Fail(ErrorCode::kBadRequest, "hello: `protocol_min` is above `protocol_max`",
                "give the lowest version first");
  }
  const uint32_t low = std::max(peer_min, kProtocolMin);
  const uint32_t high = std::min(peer_max, kProtocolMax);
  if (low <= high) return high;

  const bool peer_is_old = peer_max < kProtocolMin;
  const bool client_is_old = peer_is_old == (peer == Side::kClient);
  const bool peer_is_client = peer == Side::kClient;
  const std::string ours = RangeText(kProtocolMin, kProtocolMax);
  const std::string theirs = RangeText(peer_min, peer_max);
  const std::string peer_name(peer_build.empty() ? "unknown build" : peer_build);
  const std::string own_name(BuildId());
  return Fail(ErrorCode::kUnsupportedVersion,
              std::string(client_is_old ? "this mk" : "the running daemon") + " is too old: mk (" +
                  (peer_is_client ? peer_name : own_name) + ") speaks protocol " +
                  (peer_is_client ? theirs : ours) + ", microkimid (" +
                  (peer_is_client ? own_name : peer_name) + ") speaks " +
                  (peer_is_client ? ours : theirs),
              client_is_old ? "call the mk that was installed with the daemon"
                            : "`mk restart` replaces the running daemon",
              {{"protocol_min", int64_t{kProtocolMin}},
               {"protocol_max", int64_t{kProtocolMax}},
               {"build_id", own_name}});
}

}  // namespace mk::protocol
