#include <type_traits>

#include "protocol/messages.h"
#include "protocol/reply_fields.h"
#include "protocol/request_fields.h"
#include "protocol/value_writer.h"

namespace mk::protocol {
namespace {

constexpr std::string_view TypeName(ReplyType type) {
  switch (type) {
    case ReplyType::kAccepted:
      return "accepted";
    case ReplyType::kEvent:
      return "event";
    case ReplyType::kChunk:
      return "chunk";
    case ReplyType::kDone:
      return "done";
    case ReplyType::kError:
      return "error";
  }
  return "error";
}

// A tensor's kind is one of its fields; the other chunks have theirs put before the fields.
template <typename T>
constexpr std::string_view FixedKind() {
  if constexpr (std::is_same_v<T, TokenChunk>) return "token";
  if constexpr (std::is_same_v<T, RoutesChunk>) return "routes";
  if constexpr (std::is_same_v<T, ScoreChunk>) return "score";
  if constexpr (std::is_same_v<T, LensChunk>) return "lens";
  if constexpr (std::is_same_v<T, HiddenStatsChunk>) return "hidden_stats";
  return {};
}

void WriteBody(ValueWriter& writer, const Error& error) {
  writer.Map(2 + (error.hint.empty() ? 0 : 1) + (error.details.empty() ? 0 : 1));
  writer.Key("code");
  writer.Write(NameOf(error.code), {});
  writer.Key("message");
  writer.Write(error.message, {});
  if (!error.hint.empty()) {
    writer.Key("hint");
    writer.Write(error.hint, {});
  }
  if (!error.details.empty()) {
    writer.Key("details");
    writer.Write(error.details, {});
  }
}

template <HasSchema T>
void WriteBody(ValueWriter& writer, const T& body) {
  constexpr std::string_view kind = FixedKind<T>();
  writer.Map(ValueWriter::CountFields(body) + (kind.empty() ? 0 : 1));
  if (!kind.empty()) {
    writer.Key("kind");
    writer.Write(kind, {});
  }
  writer.WriteFields(body);
}

}  // namespace

ReplyType TypeOf(const Body& body) {
  if (std::holds_alternative<Accepted>(body)) return ReplyType::kAccepted;
  if (std::holds_alternative<Progress>(body)) return ReplyType::kEvent;
  if (std::holds_alternative<Error>(body)) return ReplyType::kError;
  const bool chunk =
      std::holds_alternative<TokenChunk>(body) || std::holds_alternative<TensorChunk>(body) ||
      std::holds_alternative<RoutesChunk>(body) || std::holds_alternative<ScoreChunk>(body) ||
      std::holds_alternative<LensChunk>(body) || std::holds_alternative<HiddenStatsChunk>(body);
  return chunk ? ReplyType::kChunk : ReplyType::kDone;
}

std::string EncodeRequest(const Request& request) {
  ValueWriter writer(ValueWriter::BadText::kKeep);
  writer.Map(4);
  writer.Key("v");
  writer.Write(request.version, {});
  writer.Key("id");
  writer.Write(request.id, {});
  writer.Key("op");
  writer.Write(InfoOf(OpOf(request)).name, {});
  writer.Key("args");
  std::visit([&](const auto& args) { writer.Write(args, Rule{}); }, request.args);
  return writer.Take();
}

std::string EncodeReply(const Reply& reply) {
  ValueWriter writer(ValueWriter::BadText::kReplace);
  writer.Map(5);
  writer.Key("v");
  writer.Write(kProtocolMax, {});
  writer.Key("id");
  writer.Write(reply.id, {});
  writer.Key("type");
  writer.Write(TypeName(TypeOf(reply.body)), {});
  writer.Key("seq");
  writer.Write(reply.seq, {});
  writer.Key("body");
  std::visit([&](const auto& body) { WriteBody(writer, body); }, reply.body);
  return writer.Take();
}

}  // namespace mk::protocol
