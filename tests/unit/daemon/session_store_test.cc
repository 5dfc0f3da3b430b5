// Sessions on disk: the old one or the new one, whole, and hostile until checked.

#include "daemon/sessions/session_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "daemon/record_file.h"
#include "daemon/sessions/session_ops.h"
#include "engine/base/atomic_file.h"
#include "tests/unit/daemon/temp_dir.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;
using protocol::SessionRecord;
using protocol::SessionTurnRecord;

const std::string kFingerprint(32, 'f');

std::string StateId(uint64_t number) {
  std::string id(64, '0');
  id.back() = static_cast<char>('0' + number % 10);
  return id;
}

// A pack as far as the store goes: bytes that appear at once.
SessionStore::WritePack Writes(const std::string& bytes, uint64_t number) {
  return [=](const std::string& path) -> Result<PackInfo> {
    if (auto written = WriteFileAtomically(path, bytes, 0600); !written) {
      return Fail(written.error());
    }
    PackInfo info;
    info.state_id = StateId(number);
    info.file_bytes = bytes.size();
    return info;
  };
}

SessionRecord Begun() {
  SessionRecord record;
  record.kind = protocol::kTextSession;
  record.model.model = "/m.bin";
  record.fingerprint = kFingerprint;
  record.precision = "q8";
  record.created_ms = 5;
  return record;
}

void Say(SessionRecord& record, const std::string& text) {
  SessionTurnRecord turn;
  turn.user = text;
  turn.content = text + "!";
  turn.common = protocol::CountTokens(record);
  turn.prompt = {1, 2};
  turn.ids = {3};
  turn.finish_reason = "length";
  record.turns.push_back(std::move(turn));
}

std::string Bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class Store : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(store_.Load()); }

  // A session of so many turns, each with its state.
  SessionRecord Make(const std::string& name, size_t turns) {
    SessionRecord record = Begun();
    for (size_t i = 0; i < turns; ++i) {
      Say(record, std::string(1, static_cast<char>('a' + i)));
      EXPECT_TRUE(store_.Keep(name, record, Writes(std::string(10 + i, 'x'), i)));
    }
    return record;
  }
  std::vector<std::string> Files(const std::string& name) {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_ + "/" + name)) {
      files.push_back(entry.path().filename().string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  // As the next daemon finds it.
  std::vector<std::string> Names(std::vector<std::string>* troubles = nullptr) {
    SessionStore next(folder_);
    EXPECT_TRUE(next.Load());
    std::vector<std::string> names;
    for (const auto& info : next.List()) names.push_back(info.name);
    if (troubles != nullptr) *troubles = next.troubles();
    return names;
  }

  TempDir dir_;
  const std::string folder_ = dir_ / "sessions";
  SessionStore store_{folder_};
};

TEST_F(Store, ARecordComesBackAsItWas) {
  SessionRecord record = Begun();
  record.chunked_prefill = false;
  record.dialect = "k3";
  record.thinking = false;
  record.system = "be brief";
  record.forked_from = "mother";
  Say(record, "Grüße");
  record.turns[0].reasoning = "hm";
  const auto info = store_.Keep("a", record, Writes("pack", 1));
  ASSERT_TRUE(info);
  EXPECT_EQ(info->turns, 1U);
  EXPECT_EQ(info->tokens, 3U);
  EXPECT_EQ(info->states, 1U);
  EXPECT_EQ(info->disk_bytes, 4U);
  const auto back = store_.Read("a");
  ASSERT_TRUE(back);
  EXPECT_TRUE(*back == record);
  EXPECT_EQ(back->turns[0].state_id, StateId(1));
  EXPECT_EQ(Bytes(store_.PackPath("a", back->turns[0].pack)), "pack");
}

TEST_F(Store, IsForItsOwnerAlone) {
  Make("a", 1);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  ASSERT_EQ(::stat((folder_ + "/a/session").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(Store, KeepsTheLastStatesOnly) {
  store_.SetLimits({2, 1000});
  const SessionRecord record = Make("a", 4);
  EXPECT_EQ(Files("a"), (std::vector<std::string>{"3.mkmem", "4.mkmem", "session"}));
  EXPECT_EQ(record.turns[1].pack, 0U);
  EXPECT_TRUE(record.turns[1].state_id.empty());
  EXPECT_EQ(record.turns[2].pack, 3U);
  EXPECT_EQ(store_.List()[0].states, 2U);
}

TEST_F(Store, KeepsTheLastStateHoweverLargeItIs) {
  store_.SetLimits({8, 21});
  Make("a", 3);  // of 10, 11 and 12 bytes
  EXPECT_EQ(Files("a"), (std::vector<std::string>{"3.mkmem", "session"}));
  store_.SetLimits({8, 25});
  SessionRecord record = *store_.Read("a");
  Say(record, "d");
  ASSERT_TRUE(store_.Keep("a", record, Writes(std::string(13, 'x'), 4)));
  EXPECT_EQ(Files("a"), (std::vector<std::string>{"3.mkmem", "4.mkmem", "session"}));
}

TEST_F(Store, AFailedTurnLeavesTheSessionAsItWas) {
  SessionRecord record = Make("a", 1);
  const SessionRecord before = record;
  Say(record, "b");
  const auto fails = [](const std::string& path) -> Result<PackInfo> {
    return Fail(ErrorCode::kIo, "cannot write " + path + ": No space left on device");
  };
  EXPECT_FALSE(store_.Keep("a", record, fails));
  EXPECT_TRUE(*store_.Read("a") == before);
  SessionRecord fresh = Begun();
  Say(fresh, "c");
  EXPECT_FALSE(store_.Keep("new", fresh, fails));
  EXPECT_FALSE(store_.Has("new"));
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
  EXPECT_EQ(Files("."), (std::vector<std::string>{"a"}));
}

TEST_F(Store, WhatADaemonThatDiedLeftIsCleanedUp) {
  Make("a", 2);
  // Between the pack and the record; in the middle of either; a session half-made or half-gone.
  Write(folder_ + "/a/3.mkmem", "pack");
  Write(folder_ + "/a/4.mkmem.tmp.77", "pa");
  Write(folder_ + "/a/session.tmp.77", "MKS");
  fs::create_directories(folder_ + "/.new-1");
  Write(folder_ + "/.new-1/1.mkmem", "pack");
  fs::create_directories(folder_ + "/.gone-2");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
  EXPECT_EQ(Files("a"), (std::vector<std::string>{"1.mkmem", "2.mkmem", "session"}));
  EXPECT_EQ(Files("."), (std::vector<std::string>{"a"}));
}

TEST_F(Store, AForkSharesItsPacks) {
  Make("a", 2);
  const auto fork = store_.Fork("a", "b", {});
  ASSERT_TRUE(fork);
  EXPECT_EQ(fork->forked_from, "a");
  EXPECT_EQ(fork->turns, 2U);
  struct stat info {};
  ASSERT_EQ(::stat(store_.PackPath("b", 2).c_str(), &info), 0);
  EXPECT_EQ(info.st_nlink, 2U);
  // What becomes of one is nothing to the other.
  SessionRecord record = *store_.Read("b");
  Say(record, "c");
  ASSERT_TRUE(store_.Keep("b", record, Writes("new", 3)));
  ASSERT_TRUE(store_.Remove({"a"}));
  EXPECT_EQ(store_.Read("b")->turns.size(), 3U);
  EXPECT_EQ(Bytes(store_.PackPath("b", 2)), std::string(11, 'x'));
}

TEST_F(Store, AForkMayLeaveTurnsOut) {
  Make("a", 3);
  ASSERT_TRUE(store_.Fork("a", "b", 1));
  EXPECT_EQ(Files("b"), (std::vector<std::string>{"1.mkmem", "session"}));
  ASSERT_TRUE(store_.Fork("a", "c", 0));
  EXPECT_EQ(Files("c"), (std::vector<std::string>{"session"}));
  const auto beyond = store_.Fork("a", "d", 4);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(store_.Has("d"));
}

TEST_F(Store, NamesAreTakenOnce) {
  Make("a", 1);
  Make("b", 1);
  EXPECT_EQ(store_.Fork("a", "b", {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_.Rename("a", "b").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_.Rename("x", "y").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store_.Remove({"a", "x"}).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(store_.Rename("a", "c"));
  ASSERT_TRUE(store_.Remove({"b", "b"}));
  EXPECT_EQ(Names(), std::vector<std::string>{"c"});
  EXPECT_EQ(store_.Read("c")->turns.size(), 1U);
}

TEST_F(Store, DamagedRecordsAreSetAsideOnce) {
  Make("a", 1);
  Make("b", 1);
  std::string bytes = Bytes(folder_ + "/a/session");
  bytes[bytes.size() / 2] ^= 1;
  Write(folder_ + "/a/session", bytes);
  std::vector<std::string> troubles;
  EXPECT_EQ(Names(&troubles), std::vector<std::string>{"b"});
  ASSERT_EQ(troubles.size(), 1U);
  EXPECT_NE(troubles[0].find("session a is damaged"), std::string::npos) << troubles[0];
  EXPECT_TRUE(fs::exists(folder_ + "/.bad/a-1/1.mkmem"));
  EXPECT_EQ(Names(&troubles), std::vector<std::string>{"b"});
  EXPECT_TRUE(troubles.empty());
  // One that is damaged while the daemon lives.
  Write(folder_ + "/b/session", "");
  EXPECT_EQ(store_.Read("b").error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(store_.Has("b"));
  EXPECT_TRUE(fs::exists(folder_ + "/.bad/b-1"));
}

TEST_F(Store, WhatIsNotOursIsLeftAlone) {
  Make("a", 1);
  Write(folder_ + "/file", "x");
  fs::create_directories(folder_ + "/not a name");
  fs::create_directory_symlink(folder_ + "/a", folder_ + "/link");
  std::vector<std::string> troubles;
  EXPECT_EQ(Names(&troubles), std::vector<std::string>{"a"});
  EXPECT_EQ(troubles.size(), 3U);
  EXPECT_TRUE(fs::exists(folder_ + "/file"));
  // Its name is taken all the same.
  SessionRecord record = Begun();
  EXPECT_FALSE(store_.Keep("link", record));
}

TEST_F(Store, LaterVersionsAreLeftAlone) {
  SessionRecord record = Make("a", 1);
  record.version = protocol::kSessionRecordVersion + 1;
  Write(folder_ + "/a/session",
        EncodeRecordFile(std::string_view("MKSESS1\0", 8), protocol::EncodeSessionRecord(record)));
  std::vector<std::string> troubles;
  EXPECT_TRUE(Names(&troubles).empty());
  ASSERT_EQ(troubles.size(), 1U);
  EXPECT_NE(troubles[0].find("is left alone"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ + "/a/1.mkmem"));
}

TEST_F(Store, RecordsThatContradictThemselvesAreRefused) {
  const auto refused = [](const std::function<void(SessionRecord&)>& change) {
    SessionRecord record = Begun();
    record.next_pack = 3;
    Say(record, "a");
    record.turns[0].pack = 1;
    record.turns[0].state_id = StateId(1);
    EXPECT_TRUE(protocol::DecodeSessionRecord(protocol::EncodeSessionRecord(record)));
    change(record);
    return !protocol::DecodeSessionRecord(protocol::EncodeSessionRecord(record));
  };
  EXPECT_TRUE(refused([](auto& record) { record.turns[0].common = 1; }));
  EXPECT_TRUE(refused([](auto& record) { record.turns[0].pack = 3; }));
  EXPECT_TRUE(refused([](auto& record) { record.turns[0].state_id = "../../x"; }));
  EXPECT_TRUE(refused([](auto& record) { record.turns[0].pack = 0; }));
  EXPECT_TRUE(refused([](auto& record) { record.turns[0].ids = {-1}; }));
  EXPECT_TRUE(refused([](auto& record) { record.fingerprint = "me"; }));
  EXPECT_TRUE(refused([](auto& record) { record.fingerprint.clear(); }));
  EXPECT_TRUE(refused([](auto& record) { record.kind = "song"; }));
  EXPECT_TRUE(refused([](auto& record) { record.precision = "f64"; }));
  EXPECT_TRUE(refused([](auto& record) { record.model.model = "m.bin/../x"; }));
  EXPECT_TRUE(refused([](auto& record) { record.next_pack = 0; }));
}

TEST_F(Store, FlippedAndCutBytesNeverMakeASession) {
  Make("a", 3);
  const std::string whole = Bytes(folder_ + "/a/session");
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    if (i % 2 == 0) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1U << (random() % 8));
    } else {
      bytes.resize(random() % bytes.size());
    }
    EXPECT_FALSE(DecodeRecordFile(std::string_view("MKSESS1\0", 8), "record of a session", bytes) &&
                 bytes != whole);
  }
  // The same without the digest to guard it.
  const std::string payload = whole.substr(24);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = payload;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    if (i % 3 == 0) bytes.resize(random() % bytes.size());
    (void)protocol::DecodeSessionRecord(bytes);
  }
}

TEST_F(Store, UndoTakesTurnsBack) {
  Make("a", 3);
  auto undone = UndoTurns(store_, {"a", 2});
  ASSERT_TRUE(undone);
  EXPECT_EQ(undone->removed, 2U);
  EXPECT_EQ(undone->session.turns, 1U);
  EXPECT_EQ(Files("a"), (std::vector<std::string>{"1.mkmem", "session"}));
  EXPECT_EQ(UndoTurns(store_, {"a", 2}).error().code, ErrorCode::kInvalidArgument);
  undone = UndoTurns(store_, {"a", {}});
  ASSERT_TRUE(undone);
  EXPECT_EQ(undone->session.kind, "");
  // Numbers of packs are not used again.
  SessionRecord record = *store_.Read("a");
  record.kind = protocol::kTextSession;
  Say(record, "z");
  ASSERT_TRUE(store_.Keep("a", record, Writes("pack", 1)));
  EXPECT_EQ(record.turns[0].pack, 4U);
}

TEST_F(Store, DiffFindsWhereTwoPart) {
  Make("a", 3);
  ASSERT_TRUE(store_.Fork("a", "b", 2));
  SessionRecord record = *store_.Read("b");
  Say(record, "c?");
  record.turns.back().ids = {9, 9};
  ASSERT_TRUE(store_.Keep("b", record));
  const auto diff = DiffSessions(store_, {"a", "b"});
  ASSERT_TRUE(diff);
  EXPECT_EQ(diff->common_turns, 2U);
  EXPECT_EQ(diff->common_tokens, 8U);
  EXPECT_EQ(diff->tokens_b, 10U);
  EXPECT_EQ(diff->rest_a, "c!");
  EXPECT_EQ(diff->rest_b, "?c?!");
  EXPECT_TRUE(diff->same_model);
  EXPECT_EQ(diff->states_missing, "the state of b is not kept");
}

TEST(SessionNames, AreOfAFewCharacters) {
  for (const char* name : {"a", "Story-1", "0.x_y", "a.bad-1"}) {
    EXPECT_TRUE(protocol::IsSessionName(name)) << name;
  }
  for (const char* name : {"", ".", "..", ".bad", "-x", "_x", "a/b", "a b", "\xc3\xa4", "a\n"}) {
    EXPECT_FALSE(protocol::IsSessionName(name)) << name;
  }
  EXPECT_TRUE(protocol::IsSessionName(std::string(64, 'x')));
  EXPECT_FALSE(protocol::IsSessionName(std::string(65, 'x')));
}

}  // namespace
}  // namespace mk::daemon
