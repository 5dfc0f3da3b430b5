// What a reply must satisfy: a client must not be misled by a daemon that is broken or another.

#include <gtest/gtest.h>

#include "tests/unit/protocol/wire.h"

namespace mk::protocol {
namespace {

using testing::json;
using testing::Pack;

json ReplyJson(const std::string& type, json body) {
  return {{"v", 1}, {"id", 7}, {"seq", 0}, {"type", type}, {"body", std::move(body)}};
}

std::string ReplyRefusal(const json& reply, Op op = Op::kRun) {
  const auto decoded = DecodeReply(Pack(reply), op);
  if (decoded) return {};
  EXPECT_EQ(decoded.error().code, ErrorCode::kBadRequest);
  return decoded.error().message;
}

void ExpectNamed(const std::string& error, const std::string& words) {
  EXPECT_NE(error.find(words), std::string::npos) << "\"" << error << "\" lacks " << words;
}

TEST(Reply, EveryPartOfTheEnvelopeIsNeeded) {
  const json whole = ReplyJson("accepted", {{"queue_position", 0}});
  EXPECT_EQ(ReplyRefusal(whole), "");
  for (const char* key : {"v", "id", "type", "seq", "body"}) {
    json reply = whole;
    reply.erase(key);
    ExpectNamed(ReplyRefusal(reply), std::string("`reply.") + key + "` is missing");
  }
}

TEST(Reply, TypesAreAClosedList) {
  ExpectNamed(ReplyRefusal(ReplyJson("doen", json::object())), "unknown type");
  ExpectNamed(ReplyRefusal(ReplyJson("", json::object())), "unknown type");
  EXPECT_EQ(ReplyRefusal(ReplyJson("done", {{"pid", 1}, {"uptime_ms", 2}}), Op::kPing), "");
}

TEST(Reply, ChunksHaveAKindThatIsKnown) {
  const json token = {
      {"kind", "token"}, {"index", 0}, {"id", 1}, {"text", "a"}, {"channel", "answer"}};
  EXPECT_EQ(ReplyRefusal(ReplyJson("chunk", token)), "");
  json changed = token;
  changed.erase("kind");
  ExpectNamed(ReplyRefusal(ReplyJson("chunk", changed)), "without its kind");
  changed["kind"] = 3;
  ExpectNamed(ReplyRefusal(ReplyJson("chunk", changed)), "without its kind");
  changed["kind"] = "tokens";
  ExpectNamed(ReplyRefusal(ReplyJson("chunk", changed)), "unknown kind");
}

TEST(Reply, TensorsAreBinaryAndTextIsText) {
  json tensor = {{"kind", "logits"},
                 {"position", 0},
                 {"row_bytes", 4},
                 {"offset", 0},
                 {"data", json::binary({1, 2, 3, 4})}};
  EXPECT_EQ(ReplyRefusal(ReplyJson("chunk", tensor)), "");
  tensor["data"] = "abcd";
  ExpectNamed(ReplyRefusal(ReplyJson("chunk", tensor)),
              "`chunk.data` must be binary data, not text");
  const json error = {{"code", json::binary({98})}, {"message", "m"}};
  ExpectNamed(ReplyRefusal(ReplyJson("error", error)),
              "`error.code` must be text, not binary data");
}

TEST(Reply, DetailsOfAnErrorAreAMapOfNumbersAndTexts) {
  const auto with = [](json details) {
    return ReplyRefusal(
        ReplyJson("error", {{"code", "busy"}, {"message", "m"}, {"details", std::move(details)}}));
  };
  EXPECT_EQ(with({{"n", 1}, {"field", "prompt"}}), "");
  ExpectNamed(with(json::array({1})), "`error.details` must be a map, not a list");
  ExpectNamed(with("n"), "`error.details` must be a map, not text");
  ExpectNamed(with({{"n", true}}), "`error.details.n` must be an integer");
}

TEST(Reply, BodiesAndTheirPartsAreMaps) {
  for (const json& body : {json(), json(true), json(1), json("text"), json::array({1})}) {
    ExpectNamed(ReplyRefusal(ReplyJson("done", body), Op::kPing), "`done` must be a map");
    ExpectNamed(ReplyRefusal(ReplyJson("accepted", body)), "`accepted` must be a map");
    const json routes = {{"kind", "routes"}, {"position", 0}, {"layers", json::array({body})}};
    ExpectNamed(ReplyRefusal(ReplyJson("chunk", routes)), "`chunk.layers[0]` must be a map");
  }
}

TEST(Reply, IdsFitTheirType) {
  const auto with = [](json ids) {
    const json body = {{"ids", std::move(ids)}, {"pieces", json::array()}, {"unk", 0}};
    return ReplyRefusal(ReplyJson("done", body), Op::kTokenize);
  };
  EXPECT_EQ(with(json::array({2147483647, -1})), "");
  ExpectNamed(with(json::array({1, 2147483648u})), "`done.ids[1]`");
  ExpectNamed(with(json::array({4294967296u})), "`done.ids[0]`");
}

TEST(Reply, AnAnswerNeedsAQuestion) {
  const auto reply = DecodeReply(Pack(ReplyJson("done", {{"pid", 1}, {"uptime_ms", 2}})),
                                 [](uint64_t) { return std::optional<Op>(); });
  ASSERT_FALSE(reply);
  ExpectNamed(reply.error().message, "not open");
}

TEST(Reply, FieldsOfLaterVersionsAreIgnoredButNotWrongOnes) {
  EXPECT_EQ(ReplyRefusal(ReplyJson("done", {{"pid", 1}, {"uptime_ms", 2}, {"new", 3}}), Op::kPing),
            "");
  ExpectNamed(ReplyRefusal(ReplyJson("done", {{"pid", -1}, {"uptime_ms", 2}}), Op::kPing),
              "`done.pid`");
}

}  // namespace
}  // namespace mk::protocol
