#include "protocol/args_check.h"
#include "protocol/message_object.h"
#include "protocol/messages.h"
#include "protocol/request_fields.h"
#include "protocol/value_reader.h"

namespace mk::protocol {
namespace {

struct RequestEnvelope {
  uint32_t version = 0;
  uint64_t id = 0;
  std::string op;
};

tl::unexpected<RefusedRequest> Refuse(uint64_t id, Error error) {
  return tl::unexpected<RefusedRequest>(RefusedRequest{id, std::move(error)});
}
tl::unexpected<RefusedRequest> Refuse(uint64_t id, std::string message, std::string hint = {}) {
  return Refuse(id, Error{ErrorCode::kBadRequest, std::move(message), std::move(hint), {}});
}

std::string OpNames() {
  std::string names;
  for (size_t i = 0; i < std::variant_size_v<Args>; ++i) {
    if (i != 0) names += ", ";
    names += InfoOf(static_cast<Op>(i)).name;
  }
  return names;
}

// Reads the args of the op with this index among the alternatives of Args.
template <size_t kIndex = 0>
Status ReadArgs(Op op, const msgpack::object& from, Args& out) {
  if constexpr (kIndex == std::variant_size_v<Args>) {
    return Fail(ErrorCode::kInternal, "an op without args");
  } else {
    if (static_cast<size_t>(op) != kIndex) return ReadArgs<kIndex + 1>(op, from, out);
    auto& args = out.emplace<kIndex>();
    const bool lenient = op == Op::kHello || op == Op::kStop;
    const ValueReader reader(lenient ? UnknownFields::kIgnore : UnknownFields::kRefuse);
    if (Status read = reader.Read(from, args, std::string(InfoOf(op).name)); !read) return read;
    return CheckArgs(args);
  }
}

}  // namespace

template <>
struct Schema<RequestEnvelope> {
  static constexpr auto fields =
      std::make_tuple(Required("v", &RequestEnvelope::version),
                      Required("id", &RequestEnvelope::id), Required("op", &RequestEnvelope::op));
};

tl::expected<Request, RefusedRequest> DecodeRequest(std::string_view bytes) {
  uint64_t id = 0;
  Result<msgpack::object_handle> message = UnpackMessage(bytes, &id);
  if (!message) return Refuse(id, std::move(message.error()));
  const msgpack::object& top = message->get();

  RequestEnvelope envelope;
  const ValueReader lenient(UnknownFields::kIgnore);
  if (Status read = lenient.Read(top, envelope, "request"); !read) return Refuse(id, read.error());
  const std::optional<Op> op = OpFromName(envelope.op);
  // hello and stop are the same in every version: one settles the version, the other lets `mk
  // restart` replace a daemon that cannot be talked to.
  const bool timeless = op == Op::kHello || op == Op::kStop;
  if (!timeless && (envelope.version < kProtocolMin || envelope.version > kProtocolMax)) {
    Result<uint32_t> none =
        Negotiate(Side::kClient, envelope.version, envelope.version, std::string_view());
    return Refuse(id, std::move(none.error()));
  }
  if (!op) {
    return Refuse(id, "unknown op `" + envelope.op.substr(0, 40) + "`", "ops: " + OpNames());
  }
  const msgpack::object* args = FindKey(top, "args");
  if (args == nullptr) return Refuse(id, "`request.args` is missing");
  if (top.via.map.size != 4) {
    return Refuse(id, "a request has exactly the fields v, id, op and args");
  }
  Request request{envelope.version, envelope.id, {}};
  if (Status read = ReadArgs(*op, *args, request.args); !read) return Refuse(id, read.error());
  return request;
}

}  // namespace mk::protocol
