// Every message survives its own encoding, and what is on the wire is what another msgpack library
// reads there.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "protocol/messages.h"
#include "tests/unit/protocol/samples.h"

namespace mk::protocol {
namespace {

using nlohmann::json;

TEST(RoundTrip, EveryRequestComesBackAsItWas) {
  std::set<Op> seen;
  for (const Request& request : testing::SampleRequests()) {
    const std::string bytes = EncodeRequest(request);
    const auto back = DecodeRequest(bytes);
    ASSERT_TRUE(back.has_value()) << InfoOf(OpOf(request)).name << ": "
                                  << back.error().error.message;
    EXPECT_TRUE(*back == request) << InfoOf(OpOf(request)).name;
    seen.insert(OpOf(request));
  }
  EXPECT_EQ(seen.size(), std::variant_size_v<Args>) << "an op has no sample";
}

TEST(RoundTrip, EveryReplyComesBackAsItWas) {
  std::set<size_t> seen;
  for (const auto& [reply, op] : testing::SampleReplies()) {
    const auto back = DecodeReply(EncodeReply(reply), op);
    ASSERT_TRUE(back.has_value()) << reply.body.index() << ": " << back.error().message;
    EXPECT_TRUE(*back == reply) << reply.body.index();
    seen.insert(reply.body.index());
  }
  // All but AckDone, which is never sent.
  EXPECT_EQ(seen.size(), std::variant_size_v<Body> - 1) << "a body has no sample";
}

TEST(RoundTrip, EveryFieldThatIsListedIsOnTheWire) {
  for (const Request& request : testing::SampleRequests()) {
    const json wire = json::from_msgpack(EncodeRequest(request));
    ASSERT_EQ(wire.size(), 4u);
    EXPECT_EQ(wire["v"], kProtocolMax);
    EXPECT_EQ(wire["id"], request.id);
    EXPECT_EQ(wire["op"], InfoOf(OpOf(request)).name);
    const auto fields = FieldsOf(OpOf(request));
    for (const auto& [key, value] : wire["args"].items()) {
      const std::string& name = key;  // Clang 14 captures no structured binding
      const bool listed = std::any_of(fields.begin(), fields.end(),
                                      [&](const FieldInfo& field) { return field.name == name; });
      EXPECT_TRUE(listed) << name;
    }
    for (const FieldInfo& field : fields) {
      if (field.required) {
        EXPECT_TRUE(wire["args"].contains(field.name)) << field.name;
      }
      EXPECT_FALSE(field.doc.empty()) << field.name;
    }
  }
}

TEST(RoundTrip, ARunReadsOnTheWireAsDocumented) {
  RunArgs args;
  args.prompt = "Hi";
  args.max_new = 3;
  args.stop = {"x"};
  const json wire = json::from_msgpack(EncodeRequest({1, 7, args}));
  EXPECT_EQ(wire["args"]["prompt"], "Hi");
  EXPECT_EQ(wire["args"]["max_new"], 3);
  EXPECT_EQ(wire["args"]["stop"], json::array({"x"}));
  EXPECT_FALSE(wire["args"].contains("ids"));
  EXPECT_FALSE(wire["args"].contains("seed"));
  EXPECT_EQ(wire["args"]["temperature"], 0.0);
}

TEST(RoundTrip, RepliesReadOnTheWireAsDocumented) {
  json wire = json::from_msgpack(EncodeReply({7, 2, TokenChunk{0, 5, "a", "answer", {}, {}}}));
  EXPECT_EQ(wire["type"], "chunk");
  EXPECT_EQ(wire["seq"], 2);
  EXPECT_EQ(wire["body"]["kind"], "token");
  EXPECT_FALSE(wire["body"].contains("logprob"));
  EXPECT_FALSE(wire["body"].contains("top"));

  wire = json::from_msgpack(EncodeReply({7, 2, TensorChunk{"logits", 1, 4, 0, "abcd"}}));
  EXPECT_EQ(wire["body"]["kind"], "logits");
  EXPECT_TRUE(wire["body"]["data"].is_binary());

  wire = json::from_msgpack(EncodeReply({7, 2, Error{ErrorCode::kBusy, "m", "h", {{"n", 1}}}}));
  EXPECT_EQ(wire["type"], "error");
  EXPECT_EQ(wire["body"],
            json({{"code", "busy"}, {"message", "m"}, {"hint", "h"}, {"details", {{"n", 1}}}}));
}

TEST(RoundTrip, ARepliesBadTextIsReplacedNotRefused) {
  // A file's name in an error need not be UTF-8.
  const auto back = DecodeReply(
      EncodeReply({1, 0, Error{ErrorCode::kNotFound, "no /tmp/\xFFx", "", {}}}), Op::kRun);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(std::get<Error>(back->body).message, "no /tmp/\xEF\xBF\xBDx");
}

TEST(RoundTrip, ACodeOfALaterVersionIsShownAsInternal) {
  const json wire = {{"v", 1},
                     {"id", 1},
                     {"type", "error"},
                     {"seq", 0},
                     {"body", {{"code", "from_the_future"}, {"message", "m"}, {"new", 1}}}};
  const auto bytes = json::to_msgpack(wire);
  const auto back =
      DecodeReply({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, Op::kRun);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(std::get<Error>(back->body).code, ErrorCode::kInternal);
  EXPECT_EQ(std::get<Error>(back->body).message, "m");
}

}  // namespace
}  // namespace mk::protocol
