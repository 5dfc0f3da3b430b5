#include "client/request_check.h"

namespace mk::client {

protocol::Status CheckRequest(const protocol::Args& args) {
  const std::string bytes =
      protocol::EncodeRequest(protocol::Request{protocol::kProtocolMax, 1, args});
  auto decoded = protocol::DecodeRequest(bytes);
  if (!decoded) return protocol::Fail(std::move(decoded.error().error));
  return {};
}

}  // namespace mk::client
