#include "protocol/message_object.h"
#include "protocol/messages.h"
#include "protocol/reply_fields.h"
#include "protocol/value_reader.h"

namespace mk::protocol {
namespace {

struct ReplyHead {
  uint32_t version = 0;
  uint64_t id = 0;
  std::string type;
  uint64_t seq = 0;
};

// Alternatives of Body before the first `done` body; those follow in the order of Op.
constexpr size_t kFirstDone = 9;
static_assert(std::is_same_v<std::variant_alternative_t<kFirstDone, Body>, HelloDone>);
static_assert(std::variant_size_v<Body> == kFirstDone + std::variant_size_v<Args>);

Status Bad(std::string message) {
  return Fail(ErrorCode::kBadRequest, std::move(message));
}

const ValueReader& Reader() {
  static constexpr UnknownFields kLenient = UnknownFields::kIgnore;
  static const ValueReader reader(kLenient);
  return reader;
}

template <typename T>
Status ReadInto(const msgpack::object& from, Body& out, const std::string& context) {
  return Reader().Read(from, out.emplace<T>(), context);
}

template <size_t kIndex = 0>
Status ReadDone(Op op, const msgpack::object& from, Body& out) {
  if constexpr (kIndex == std::variant_size_v<Args>) {
    return Bad("reply to an op that does not exist");
  } else {
    if (static_cast<size_t>(op) != kIndex) return ReadDone<kIndex + 1>(op, from, out);
    return Reader().Read(from, out.emplace<kFirstDone + kIndex>(), "done");
  }
}

Status ReadChunk(const msgpack::object& from, Body& out) {
  const msgpack::object* kind = FindKey(from, "kind");
  if (kind == nullptr || kind->type != msgpack::type::STR) return Bad("a chunk without its kind");
  const std::string_view name(kind->via.str.ptr, kind->via.str.size);
  if (name == "token") return ReadInto<TokenChunk>(from, out, "chunk");
  if (name == "routes") return ReadInto<RoutesChunk>(from, out, "chunk");
  if (name == "score") return ReadInto<ScoreChunk>(from, out, "chunk");
  if (name == "lens") return ReadInto<LensChunk>(from, out, "chunk");
  if (name == "hidden_stats") return ReadInto<HiddenStatsChunk>(from, out, "chunk");
  if (name == "logits" || name == "hidden") return ReadInto<TensorChunk>(from, out, "chunk");
  return Bad("a chunk of an unknown kind");
}

struct WireError {
  std::string code;
  std::string message;
  std::string hint;
  std::map<std::string, Detail> details;
};

}  // namespace

template <>
struct Schema<ReplyHead> {
  static constexpr auto fields =
      std::make_tuple(Required("v", &ReplyHead::version), Required("id", &ReplyHead::id),
                      Required("type", &ReplyHead::type), Required("seq", &ReplyHead::seq));
};

template <>
struct Schema<WireError> {
  static constexpr auto fields =
      std::make_tuple(Required("code", &WireError::code), Required("message", &WireError::message),
                      Optional("hint", &WireError::hint), Optional("details", &WireError::details));
};

namespace {

Status ReadError(const msgpack::object& from, Body& out) {
  WireError wire;
  if (Status read = Reader().Read(from, wire, "error"); !read) return read;
  // A code of a later version: what it says is still shown.
  const ErrorCode code = ErrorCodeFromName(wire.code).value_or(ErrorCode::kInternal);
  out = Error{code, std::move(wire.message), std::move(wire.hint), std::move(wire.details)};
  return {};
}

Status ReadBody(const std::string& type, const msgpack::object& from, std::optional<Op> op,
                Body& out) {
  if (type == "accepted") return ReadInto<Accepted>(from, out, "accepted");
  if (type == "event") return ReadInto<Progress>(from, out, "event");
  if (type == "chunk") return ReadChunk(from, out);
  if (type == "error") return ReadError(from, out);
  if (type != "done") return Bad("reply of an unknown type");
  if (!op) return Bad("reply to a request that is not open");
  return ReadDone(*op, from, out);
}

}  // namespace

Result<Reply> DecodeReply(std::string_view bytes, const OpOfRequest& op_of) {
  Result<msgpack::object_handle> message = UnpackMessage(bytes);
  if (!message) return Fail(std::move(message.error()));
  ReplyHead head;
  if (Status read = Reader().Read(message->get(), head, "reply"); !read) return Fail(read.error());
  const msgpack::object* body = FindKey(message->get(), "body");
  if (body == nullptr) return Fail(ErrorCode::kBadRequest, "`reply.body` is missing");
  Reply reply{head.id, head.seq, {}};
  if (Status read = ReadBody(head.type, *body, op_of(head.id), reply.body); !read) {
    return Fail(read.error());
  }
  return reply;
}

Result<Reply> DecodeReply(std::string_view bytes, Op op) {
  return DecodeReply(bytes, [op](uint64_t) { return std::optional<Op>(op); });
}

}  // namespace mk::protocol
