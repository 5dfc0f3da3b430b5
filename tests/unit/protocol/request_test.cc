// What a request must satisfy beyond being well-formed: presence, types and ranges of fields.

#include <gtest/gtest.h>

#include "tests/unit/protocol/wire.h"

namespace mk::protocol {
namespace {

using testing::json;
using testing::Pack;
using testing::RefusalOf;
using testing::RequestJson;

json RunJson(json more = json::object()) {
  json args = {{"prompt", "Hi"}};
  args.update(more);
  return RequestJson("run", args);
}

std::string RunRefusal(json more) {
  return RefusalOf(Pack(RunJson(std::move(more))));
}

void ExpectNamed(const std::string& error, const std::string& words) {
  EXPECT_NE(error.find(words), std::string::npos) << "\"" << error << "\" lacks " << words;
}

TEST(Request, AMinimalRunIsTakenWithItsDefaults) {
  const auto request = DecodeRequest(Pack(RunJson()));
  ASSERT_TRUE(request.has_value()) << request.error().error.message;
  RunArgs expected;
  expected.prompt = "Hi";
  EXPECT_TRUE(std::get<RunArgs>(request->args) == expected);
  EXPECT_EQ(request->id, 7u);
}

TEST(Request, IntegersAreTakenWhereNumbersAreWanted) {
  const auto request = DecodeRequest(Pack(RunJson({{"temperature", 1}})));
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(std::get<RunArgs>(request->args).temperature, 1.0);
}

TEST(Request, ARefusalCarriesTheIdOfAMessageThatCannotBeDecoded) {
  for (const uint64_t id : {uint64_t{7}, uint64_t{300}, uint64_t{1} << 40}) {
    RunArgs run;
    run.prompt = "ab\xff";
    const auto request = DecodeRequest(EncodeRequest({kProtocolMax, id, run}));
    ASSERT_FALSE(request);
    EXPECT_EQ(request.error().id, id);
    ExpectNamed(request.error().error.message, "byte 2");
  }
}

TEST(Request, TheIdOfACutOffMessageIsKnownOnceItWasThere) {
  const std::string whole = EncodeRequest({kProtocolMax, 9, PingArgs{}});
  const size_t id_ends = whole.find("\xA2id") + 3 + 9;  // a uint64 is nine bytes at most
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto request = DecodeRequest(whole.substr(0, size));
    ASSERT_FALSE(request);
    EXPECT_TRUE(request.error().id == 9 || (request.error().id == 0 && size < id_ends)) << size;
  }
  // An id that is text is none, and only the one at the top counts.
  EXPECT_EQ(DecodeRequest("\x82\xA2id\xA1x").error().id, 0u);
  EXPECT_EQ(DecodeRequest("\x82\xA1z\x81\xA2id\x05").error().id, 0u);
}

TEST(Request, UnknownOpsAreNamed) {
  const auto request = DecodeRequest(Pack(RequestJson("rum", json::object())));
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().id, 7u);
  ExpectNamed(request.error().error.message, "`rum`");
  ExpectNamed(request.error().error.hint, "run");
}

TEST(Request, UnknownFieldsAreNamed) {
  ExpectNamed(RunRefusal({{"max_tokens", 3}}), "`max_tokens`");
  ExpectNamed(RefusalOf(Pack(RequestJson("ping", {{"x", 1}}))), "`x`");
  json request = RunJson();
  request["extra"] = 1;
  EXPECT_NE(RefusalOf(Pack(request)), "");
}

TEST(Request, DoubledFieldsAreNamed) {
  // {"v":1,"id":7,"op":"unload","args":{"model":"a","model":"b"}}
  const std::string bytes = std::string(
                                "\x84\xA1v\x01\xA2id\x07\xA2op\xA6unload\xA4"
                                "args\x82\xA5model\xA1") +
                            "a" + "\xA5model\xA1" + "b";
  ExpectNamed(RefusalOf(bytes), "`model` is given twice");
}

TEST(Request, MissingFieldsAreNamed) {
  ExpectNamed(RefusalOf(Pack(RequestJson("cancel", json::object()))), "`request`");
  ExpectNamed(RefusalOf(Pack(RequestJson("ack", {{"request", 1}}))), "`seq`");
  for (const char* key : {"v", "id", "op", "args"}) {
    json request = RunJson();
    request.erase(key);
    ExpectNamed(RefusalOf(Pack(request)), std::string("`") + key + "` is missing");
  }
}

TEST(Request, WrongTypesAreNamed) {
  ExpectNamed(RunRefusal({{"max_new", "3"}}), "`max_new` must be an integer, not text");
  ExpectNamed(RunRefusal({{"max_new", 3.0}}), "`max_new`");
  ExpectNamed(RunRefusal({{"raw", 1}}), "`raw`");
  ExpectNamed(RunRefusal({{"temperature", "hot"}}), "`temperature`");
  ExpectNamed(RunRefusal({{"prompt", json::binary({65})}}), "`prompt`");
  ExpectNamed(RunRefusal({{"stop", "x"}}), "`stop`");
  ExpectNamed(RunRefusal({{"stop", json::array({"ok", 1})}}), "`stop[1]`");
  ExpectNamed(RunRefusal({{"seed", nullptr}}), "`seed`");
  json request = RunJson();
  request["args"] = json::array();
  ExpectNamed(RefusalOf(Pack(request)), "`args` must be a map");
  ExpectNamed(RefusalOf(Pack(json::array({1, 2}))), "it is not a map");
}

TEST(Request, RangesAreKept) {
  const std::vector<std::pair<json, json>> pairs = {
      // the last that is allowed, the first that is not
      {{{"max_new", 1 << 20}}, {{"max_new", (1 << 20) + 1}}},
      {{{"max_new", 0}}, {{"max_new", -1}}},
      {{{"temperature", 100.0}}, {{"temperature", 100.5}}},
      {{{"temperature", 0.0}}, {{"temperature", -0.1}}},
      {{{"top_p", 1.0}}, {{"top_p", 1.01}}},
      {{{"top_p", 0.001}}, {{"top_p", 0.0}}},
      {{{"min_p", 1.0}}, {{"min_p", 1.5}}},
      {{{"window", 1}}, {{"window", 0}}},
      {{{"window", kMaxWindow}}, {{"window", kMaxWindow + 1}}},
      {{{"precision", "exact"}}, {{"precision", "sloppy"}}},
      {{{"precision", "bf16"}}, {{"precision", "bf"}}},
      {{{"precision", "q8"}}, {{"precision", "q4"}}},
      {{{"precision", "auto"}}, {{"precision", ""}}},
      {{{"dialect", "k3"}}, {{"dialect", "k4"}}},
      {{{"stop", json::array({"x"})}}, {{"stop", json::array({""})}}},
      {{{"stop", json(std::vector<std::string>(16, "x"))}},
       {{"stop", json(std::vector<std::string>(17, "x"))}}},
      {{{"stop", json::array({std::string(256, 'x')})}},
       {{"stop", json::array({std::string(257, 'x')})}}},
      {{{"seed", UINT64_MAX}}, {{"seed", -1}}},
  };
  for (const auto& [good, bad] : pairs) {
    EXPECT_EQ(RunRefusal(good), "") << good;
    const std::string name = "`" + bad.begin().key();
    ExpectNamed(RunRefusal(bad), name);
  }
}

TEST(Request, NumbersMustBeFinite) {
  // nlohmann writes what it is given, so the bytes are made by hand: a float64 NaN and +inf.
  std::string bytes = Pack(RunJson({{"temperature", 0.123}}));
  const std::string marker = Pack(0.123);
  for (const char* pattern : {"\x7F\xF8", "\x7F\xF0"}) {
    std::string changed = bytes;
    std::string value = std::string("\xCB") + std::string(pattern, 2) + std::string(6, '\0');
    changed.replace(changed.find(marker), marker.size(), value);
    ExpectNamed(RefusalOf(changed), "`temperature` must be a finite number");
  }
}

TEST(Request, TokenIdsAreChecked) {
  const auto ids = [](json list) {
    return RefusalOf(Pack(RequestJson("run", {{"ids", std::move(list)}})));
  };
  EXPECT_EQ(ids(json::array({0, 2147483647})), "");
  ExpectNamed(ids(json::array({1, -1})), "`ids[1]`");
  ExpectNamed(ids(json::array({1, 2147483648u})), "`ids[1]`");
  ExpectNamed(ids(json::array()), "`ids` is empty");
}

TEST(Request, PromptsAreExactlyOneAndNotEmpty) {
  ExpectNamed(RefusalOf(Pack(RequestJson("run", json::object()))), "no prompt");
  ExpectNamed(RunRefusal({{"ids", json::array({1})}}), "more than one");
  ExpectNamed(RunRefusal({{"messages", json::array({{{"role", "user"}, {"content", "x"}}})}}),
              "more than one");
  ExpectNamed(RunRefusal({{"prompt", ""}}), "`prompt` is empty");
}

TEST(Request, AChatTurnsFieldsNeedAChatTurn) {
  EXPECT_EQ(RunRefusal({{"system", "s"}, {"dialect", "k3"}}), "");
  ExpectNamed(RunRefusal({{"raw", true}, {"system", "s"}}), "`system`");
  ExpectNamed(RunRefusal({{"raw", true}, {"dialect", "k3"}}), "`dialect`");
}

TEST(Request, AConversationIsCheckedMessageByMessage) {
  const auto refusal = [](json messages, json more = json::object()) {
    json args = {{"messages", std::move(messages)}};
    args.update(more);
    return RefusalOf(Pack(RequestJson("run", args)));
  };
  const json user = {{"role", "user"}, {"content", ""}};
  EXPECT_EQ(refusal({user}), "");
  EXPECT_EQ(refusal({user}, {{"raw", true}}), "");
  EXPECT_EQ(refusal({user}, {{"dialect", "k3"}, {"thinking", false}}), "");
  EXPECT_EQ(refusal(json(std::vector<json>(1 << 16, user))), "");
  ExpectNamed(refusal(json(std::vector<json>((1 << 16) + 1, user))), "`messages` has 65537 items");
  ExpectNamed(refusal(json::array()), "`messages` is empty");
  ExpectNamed(refusal({user}, {{"system", "s"}}), "`system` and `messages`");
  ExpectNamed(refusal({user}, {{"raw", true}, {"dialect", "k3"}}), "`dialect`");
  ExpectNamed(refusal({user, 7}), "`messages[1]` must be a map");
  ExpectNamed(refusal({user, {{"role", "tool"}, {"content", ""}}}), "`messages[1].role`");
  ExpectNamed(refusal({user, {{"role", "user"}}}), "`messages[1].content` is missing");
  ExpectNamed(refusal({{{"role", "user"}, {"content", ""}, {"ids", {1, -1}}}}),
              "`messages[0].ids[1]`");
  ExpectNamed(refusal({{{"role", "user"}, {"content", ""}, {"id", 1}}}), "`messages[0].id`");
}

TEST(Request, TokenizeTakesAChatTurnOrPlainText) {
  const auto refusal = [](json more) {
    json args = {{"text", "Hi"}};
    args.update(more);
    return RefusalOf(Pack(RequestJson("tokenize", args)));
  };
  EXPECT_EQ(refusal({{"plain", true}}), "");
  EXPECT_EQ(refusal({{"chat", true}, {"system", "s"}, {"dialect", "k3"}}), "");
  ExpectNamed(refusal({{"chat", true}, {"plain", true}}), "exclude each other");
  ExpectNamed(refusal({{"system", "s"}}), "need `chat`");
  ExpectNamed(refusal({{"dialect", "k3"}}), "need `chat`");
}

TEST(Request, PathsAreAbsolute) {
  EXPECT_EQ(RunRefusal({{"model", "name"}}), "");
  EXPECT_EQ(RunRefusal({{"model", "/a/b.bin"}}), "");
  ExpectNamed(RunRefusal({{"model", "a/b.bin"}}), "relative");
  ExpectNamed(RunRefusal({{"vocab", "v.json"}}), "`vocab`");
  ExpectNamed(RunRefusal({{"vocab", std::string("/a\0b", 4)}}), "zero byte");
  ExpectNamed(RefusalOf(Pack(RequestJson("build", {{"out", "x.bin"}}))), "`out`");
}

TEST(Request, APromptThatIsNotUtf8NamesTheByte) {
  std::string bytes = Pack(RunJson({{"prompt", "abcdefgh"}}));
  bytes[bytes.find("abcdefgh") + 5] = '\xE9';
  const auto request = DecodeRequest(bytes);
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().error.code, ErrorCode::kBadRequest);
  EXPECT_EQ(request.error().id, 7u) << "the client must learn which of its requests was refused";
  ExpectNamed(request.error().error.message, "`prompt` is not UTF-8: byte 5");
  EXPECT_EQ(std::get<int64_t>(request.error().error.details.at("byte_offset")), 5);
}

TEST(Request, OtherVersionsAreToldWhichSideIsOld) {
  for (const auto& [version, old_side] : {std::pair(kProtocolMax + 1, "daemon is too old"),
                                          std::pair(kProtocolMin - 1, "mk is too old")}) {
    json request = RunJson();
    request["v"] = version;
    const auto refused = DecodeRequest(Pack(request));
    ASSERT_FALSE(refused) << version;
    EXPECT_EQ(refused.error().error.code, ErrorCode::kUnsupportedVersion);
    EXPECT_EQ(refused.error().id, 7u);
    ExpectNamed(refused.error().error.message, old_side);
  }
}

TEST(Request, HelloAndStopAreTakenInAnyVersion) {
  json hello = RequestJson(
      "hello",
      {{"protocol_min", 40}, {"protocol_max", 41}, {"build_id", "x"}, {"something_new", 1}});
  hello["v"] = 41;
  EXPECT_EQ(RefusalOf(Pack(hello)), "");
  json stop = RequestJson("stop", {{"something_new", 1}});
  stop["v"] = 41;
  EXPECT_EQ(RefusalOf(Pack(stop)), "");
}

TEST(Request, EveryRefusalTellsHowToMendIt) {
  json more = RunJson();
  more["extra"] = 1;
  json less = RunJson();
  less.erase("v");
  const std::vector<std::string> all = {
      "",
      "\x91",
      Pack(json::array({1})),
      Pack(more),
      Pack(less),
      Pack(RequestJson("rum", json::object())),
      Pack(RequestJson("run", json::array())),
      Pack(RequestJson("run", json::object())),
      Pack(RequestJson("ping", {{"x", 1}})),
      Pack(RequestJson("cancel", json::object())),
      Pack(RequestJson("tokenize", {{"text", "a"}, {"chat", true}, {"plain", true}})),
      Pack(RunJson({{"stop", json::array({1})}})),
      Pack(RunJson({{"prompt", "\xff"}})),
      Pack(RunJson({{"system", std::string((16 << 20) + 1, 's')}}))};
  for (const std::string& bytes : all) {
    const auto request = DecodeRequest(bytes);
    ASSERT_FALSE(request);
    EXPECT_FALSE(request.error().error.hint.empty()) << request.error().error.message;
  }
}

TEST(Request, ErrorsNeverCarryWhatTheRequestSaysInFull) {
  const std::string long_key(60, 'k');
  const std::string error = RunRefusal({{long_key, 1}});
  EXPECT_EQ(error.find(long_key), std::string::npos);
  EXPECT_EQ(RunRefusal({{"\n\x1b[31m", 1}}).find('\x1b'), std::string::npos);
  EXPECT_EQ(RunRefusal({{"a\x7f", 1}}).find('\x7f'), std::string::npos);
  EXPECT_EQ(RunRefusal({{"\n\x1b[31m", "\xff"}}).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace mk::protocol
