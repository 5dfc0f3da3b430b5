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

constexpr const char* kEnvelope = "a request is a map with exactly the fields v, id, op and args";

Error WithHint(Error error, std::string hint) {
  if (error.hint.empty()) error.hint = std::move(hint);
  return error;
}

// What is said about the field elsewhere: its type, range and meaning; for one that does not exist,
// those that do.
std::string HintOn(Op op, const Error& error) {
  const auto detail = error.details.find("field");
  if (detail == error.details.end()) return {};
  const auto& path = std::get<std::string>(detail->second);
  const std::string_view name = std::string_view(path).substr(0, path.find_first_of("[."));
  const std::string op_name(InfoOf(op).name);
  std::string names;
  for (const FieldInfo& field : FieldsOf(op)) {
    if (field.name == name) {
      const std::string range = field.range.empty() ? "" : ", " + field.range;
      return "`" + field.name + "` (" + field.type + range + "): " + field.doc;
    }
    names += (names.empty() ? "" : ", ") + field.name;
  }
  return names.empty() ? "`" + op_name + "` has no fields"
                       : "fields of `" + op_name + "`: " + names;
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
    if (Status read = reader.Read(from, args, {}); !read) {
      return Fail(WithHint(read.error(), HintOn(op, read.error())));
    }
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
  if (Status read = lenient.Read(top, envelope, {}); !read) {
    return Refuse(id, WithHint(read.error(), kEnvelope));
  }
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
  if (args == nullptr) return Refuse(id, "`args` is missing", kEnvelope);
  if (args->type != msgpack::type::MAP) {
    return Refuse(
        id, WithHint(WrongType("args", "a map", ValueReader::KindOf(*args)).error(), kEnvelope));
  }
  if (top.via.map.size != 4) {
    return Refuse(id, "the request has more fields than v, id, op and args", kEnvelope);
  }
  Request request{envelope.version, envelope.id, {}};
  if (Status read = ReadArgs(*op, *args, request.args); !read) return Refuse(id, read.error());
  return request;
}

}  // namespace mk::protocol
