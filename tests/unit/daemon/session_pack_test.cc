// Sessions made of packs, and packs of sessions: what a lineage says is hostile until checked.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "daemon/sessions/session_ops.h"
#include "engine/pack/pack_copy.h"
#include "engine/pack/pack_file.h"
#include "tests/unit/model/random_model.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/saved_state.h"
#include "tests/unit/pack/pack_bytes.h"

namespace mk::daemon {
namespace {

using nlohmann::json;
using test::Kind;

class SessionPacks : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { ASSERT_TRUE(store_.Load()); }

  // A text of one turn, with the state after it.
  protocol::SessionRecord Begin(const std::string& name) {
    protocol::SessionRecord record;
    record.kind = protocol::kTextSession;
    record.model.model = model_.path();
    record.fingerprint = model_->info().fingerprint;
    record.precision = "exact";
    record.created_ms = 7;
    protocol::SessionTurnRecord turn;
    turn.user = "Once";
    turn.content = " upon";
    turn.prompt = {1, 2, 3};
    turn.ids = {4, 5};
    turn.finish_reason = "length";
    turn.ended_ms = 9;
    record.turns.push_back(turn);
    EXPECT_TRUE(store_.Keep(name, record, [this](const std::string& path) {
      const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
      auto sequence = test::MakeSequence(*model_);
      auto logits = test::Feed(*model_, *executor_, *sequence, tokens);
      logits.erase(logits.begin(), logits.end() - static_cast<ptrdiff_t>(model_->info().vocab));
      return SavePack(path, *model_, *sequence, {tokens, logits, ""});
    }));
    return record;
  }
  std::string Path(const std::string& name) const { return directory_.Path(name); }
  // A session of the pack whose lineage was replaced.
  Result<protocol::SessionRestoreDone> WithLineage(const std::string& lineage) {
    const std::string pack = Path("told.mkmem");
    EXPECT_TRUE(CopyPack(Path("saved.mkmem"), lineage, {pack, true}));
    return RestoreSession(store_, {"made", pack, {}});
  }

  test::TempDirectory directory_;
  test::RandomModel model_{GetParam()};
  std::unique_ptr<Executor> executor_ = test::MakeExecutor(1);
  SessionStore store_{directory_.Path("sessions")};
};

TEST_P(SessionPacks, ASavedSessionComesBackAsItWas) {
  const protocol::SessionRecord record = Begin("a");
  const auto saved = SaveSession(store_, {"a", Path("saved.mkmem"), false});
  ASSERT_TRUE(saved) << saved.error().ToString();
  EXPECT_EQ(saved->tokens, 5U);
  EXPECT_EQ(saved->state_id, record.turns[0].state_id);
  EXPECT_FALSE(SaveSession(store_, {"a", Path("saved.mkmem"), false}));
  ASSERT_TRUE(SaveSession(store_, {"a", Path("saved.mkmem"), true}));
  const auto restored = RestoreSession(store_, {"b", Path("saved.mkmem"), {}});
  ASSERT_TRUE(restored) << restored.error().ToString();
  protocol::SessionRecord back = *store_.Read("b");
  EXPECT_TRUE(back.turns == record.turns);
  EXPECT_EQ(back.model, record.model);
  const auto pack = LoadPack(store_.PackPath("b", 1), *model_);
  ASSERT_TRUE(pack);
  EXPECT_EQ(pack->contents.tokens, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(pack->contents.lineage.empty());
  EXPECT_EQ(pack->info.state_id, record.turns[0].state_id);
  EXPECT_FALSE(RestoreSession(store_, {"b", Path("saved.mkmem"), {}}));
}

TEST_P(SessionPacks, APackWithoutASessionIsAText) {
  Begin("a");
  ASSERT_TRUE(SaveSession(store_, {"a", Path("saved.mkmem"), false}));
  for (const char* lineage : {"", "{}", "no JSON", "[1]", "{\"operation\":\"run\"}"}) {
    const auto made = WithLineage(lineage);
    ASSERT_TRUE(made) << lineage << ": " << made.error().ToString();
    EXPECT_EQ(made->session.kind, "text");
    EXPECT_EQ(made->session.tokens, 5U);
    EXPECT_EQ(made->session.fingerprint, model_->info().fingerprint);
    ASSERT_TRUE(store_.Remove({"made"}));
  }
}

TEST_P(SessionPacks, ALineageThatLiesIsRefused) {
  Begin("a");
  ASSERT_TRUE(SaveSession(store_, {"a", Path("saved.mkmem"), false}));
  const auto pack = LoadPack(Path("saved.mkmem"), *model_);
  ASSERT_TRUE(pack);
  const json good = json::parse(pack->contents.lineage);
  const auto refused = [&](const std::function<void(json&)>& change) {
    json lineage = good;
    change(lineage["session"]);
    const auto made = WithLineage(lineage.dump());
    return !made && made.error().code == ErrorCode::kCorrupt && !store_.Has("made");
  };
  EXPECT_TRUE(refused([](json& session) { session["turns"][0]["ids"] = {4, 6}; }));
  EXPECT_TRUE(refused([](json& session) { session["turns"] = json::array(); }));
  EXPECT_TRUE(refused([](json& session) { session["fingerprint"] = std::string(32, 'a'); }));
  EXPECT_TRUE(refused([](json& session) { session["precision"] = "q8"; }));
  EXPECT_TRUE(refused([](json& session) { session["version"] = 99; }));
  EXPECT_TRUE(refused([](json& session) { session["turns"][0]["user"] = 3; }));
  EXPECT_TRUE(refused([](json& session) { session = 3; }));
  // Nested too deep to be read: no lineage of ours.
  const std::string deep(200'000, '[');
  const auto made = WithLineage("{\"session\":" + deep);
  EXPECT_TRUE(made) << made.error().ToString();
}

TEST_P(SessionPacks, PacksThatDoNotKnowTheirTextMakeNoSession) {
  auto sequence = test::MakeSequence(*model_);
  const std::vector<int32_t> tokens = {1, 2, 3};
  test::Feed(*model_, *executor_, *sequence, tokens);
  ASSERT_TRUE(SavePack(Path("dumb.mkmem"), *model_, *sequence, {}));
  EXPECT_EQ(RestoreSession(store_, {"made", Path("dumb.mkmem"), {}}).error().code,
            ErrorCode::kUnsupported);
  EXPECT_EQ(RestoreSession(store_, {"made", Path("none.mkmem"), {}}).error().code,
            ErrorCode::kNotFound);
  Begin("a");
  ASSERT_TRUE(SaveSession(store_, {"a", Path("saved.mkmem"), false}));
  std::string bytes = test::ReadBytes(Path("saved.mkmem"));
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 50 + 1) {
    std::string torn = bytes;
    torn[at] = static_cast<char>(torn[at] ^ 0x10);
    test::WriteBytes(Path("torn.mkmem"), torn);
    if (const auto made = RestoreSession(store_, {"made", Path("torn.mkmem"), {}})) {
      // A byte that means nothing.
      EXPECT_TRUE(LoadPack(Path("torn.mkmem"), *model_));
      ASSERT_TRUE(store_.Remove({"made"}));
    }
  }
  EXPECT_FALSE(store_.Has("made"));
}

INSTANTIATE_TEST_SUITE_P(Models, SessionPacks, testing::Values(Kind::kK3, Kind::kDsv4));

}  // namespace
}  // namespace mk::daemon
