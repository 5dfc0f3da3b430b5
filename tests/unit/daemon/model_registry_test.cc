// The registry with a loader that opens nothing.

#include "daemon/model_registry.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <fstream>
#include <mutex>

#include "daemon/model_catalog.h"
#include "fake_model.h"
#include "temp_dir.h"

namespace mk::daemon {
namespace {

using namespace std::chrono_literals;

constexpr auto kExact = Precision::kExact;
constexpr auto kBf16 = Precision::kBf16;
constexpr auto kQ8 = Precision::kQ8;

using Keys = std::vector<uint64_t>;

class RegistryTest : public ::testing::Test {
 protected:
  RegistryTest() {
    std::ofstream(dir_ / "a.bin") << "a";
    std::ofstream(dir_ / "b.bin") << "bb";
    Make();
  }

  void Make() {
    registry_ = std::make_unique<ModelRegistry>(
        ledger_, metrics_,
        [this](const ModelRef& ref, const LoadOptions& options) { return Load(ref, options); },
        [this](LoadEvent event) {
          std::lock_guard lock(mutex_);
          events_.push_back(std::move(event));
          changed_.notify_all();
        });
  }

  Result<LoadedModel> Load(const ModelRef& ref, const LoadOptions& options) {
    ++loads_;
    if (Status status = Wait(options); !status) return Fail(status.error());
    if (fail_.load()) return Fail(ErrorCode::kCorrupt, ref.path + " is corrupt");
    const uint64_t bytes = options.precision == kExact ? exact_bytes_.load() : 300;
    if (Status status = options.admit(bytes); !status) return Fail(status.error());
    LoadedModel loaded;
    auto model = std::make_shared<FakeModel>(100, options.precision);
    model->SetResidentBytes(bytes);
    model->precision_bytes = precision_bytes_.load();
    model->on_prepare = [this](const LoadOptions& given) { return Wait(given); };
    loaded.model = model;
    alive_ = model;
    return loaded;
  }

  // Until the loader is let go; gives up when it is told to, unless it is deaf.
  Status Wait(const LoadOptions& options) {
    while (held_.load()) {
      reached_ = true;
      if (!options.progress(0.5) && !deaf_.load()) return Fail(ErrorCode::kCancelled, "given up");
      std::this_thread::sleep_for(1ms);
    }
    return {};
  }

  // A loaded model that nobody uses.
  ModelRegistry::Entry* LoadIdle(const char* name) {
    EXPECT_TRUE(registry_->Acquire(Ref(name), kExact, 1));
    ModelRegistry::Entry* entry = Finish().entry;
    registry_->Release(1);
    return entry;
  }

  const FakeModel& ModelOf(const ModelRegistry::Entry& entry) {
    return static_cast<const FakeModel&>(*entry.loaded->model);
  }

  // Lets the next load event through the registry.
  ModelRegistry::Outcome Finish() {
    while (true) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, 10s, [this] { return !events_.empty(); })) {
        ADD_FAILURE() << "no load event came";
        return {};
      }
      LoadEvent event = std::move(events_.front());
      events_.erase(events_.begin());
      lock.unlock();
      if (auto* progress = std::get_if<LoadProgress>(&event)) registry_->OnProgress(*progress);
      if (auto* finished = std::get_if<LoadFinished>(&event)) {
        return registry_->OnFinished(std::move(*finished));
      }
    }
  }

  ModelRef Ref(const char* name) const { return {dir_ / name, {}, {}}; }

  TempDir dir_;
  Ledger ledger_{1000};
  Metrics metrics_;
  std::atomic<int> loads_{0};
  std::atomic<bool> held_{false};
  std::atomic<bool> fail_{false};
  std::atomic<bool> reached_{false};  // the loader waits
  std::atomic<bool> deaf_{false};
  std::atomic<uint64_t> exact_bytes_{300};
  std::atomic<uint64_t> precision_bytes_{50};
  std::weak_ptr<const Model> alive_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LoadEvent> events_;
  std::unique_ptr<ModelRegistry> registry_;
};

TEST_F(RegistryTest, IsLoadedOnceForAllWhoWait) {
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));
  held_ = false;
  auto outcome = Finish();
  EXPECT_EQ(outcome.requests, (std::vector<uint64_t>{1, 2}));
  ASSERT_NE(outcome.entry, nullptr);
  EXPECT_EQ(outcome.entry->users.size(), 2U);
  auto third = registry_->Acquire(Ref("a.bin"), kExact, 3);
  ASSERT_TRUE(third);
  EXPECT_NE((*third)->loaded, nullptr);
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(ledger_.used(MemoryUse::kModels), 300U);
}

TEST_F(RegistryTest, AChangedFileIsANewModelAndRunningRequestsKeepTheOld) {
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  auto* old = Finish().entry;
  ASSERT_NE(old, nullptr);
  const uint64_t old_id = old->id;
  std::ofstream(dir_ / "a.bin") << "another content";
  auto fresh = registry_->Acquire(Ref("a.bin"), kExact, 2);
  ASSERT_TRUE(fresh);
  EXPECT_NE((*fresh)->id, old_id);
  ASSERT_NE(Finish().entry, nullptr);
  EXPECT_NE(registry_->Find(old_id), nullptr);  // request 1 still runs on it
  registry_->Release(1);
  EXPECT_EQ(registry_->Find(old_id), nullptr);
  EXPECT_EQ(registry_->entries().size(), 1U);
}

TEST_F(RegistryTest, AnIdleModelGoesAtOnceWhenItsFileIsReplaced) {
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  Finish();
  registry_->Release(1);
  std::ofstream(dir_ / "a.bin") << "another content";
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));
  EXPECT_EQ(ledger_.used(MemoryUse::kModels), 0U);  // the new one is not there yet
  EXPECT_EQ(registry_->entries().size(), 1U);
  held_ = false;
  EXPECT_NE(Finish().entry, nullptr);
}

TEST_F(RegistryTest, TooManyLoadsThatWaitAreRefused) {
  held_ = true;
  bool refused = false;
  for (uint64_t i = 0; i < 100 && !refused; ++i) {
    const std::string name = std::to_string(i) + ".bin";
    std::ofstream(dir_ / name) << name;
    auto entry = registry_->Acquire(Ref(name.c_str()), kExact, i);
    refused = !entry;
    if (refused) {
      EXPECT_EQ(entry.error().code, ErrorCode::kOutOfMemory);
    }
  }
  EXPECT_TRUE(refused);
  // A further precision is one more; one that is on its way is not.
  EXPECT_FALSE(registry_->Acquire(Ref("0.bin"), kQ8, 100));
  EXPECT_TRUE(registry_->Acquire(Ref("0.bin"), kExact, 101));
  registry_->Release(101);
  for (uint64_t i = 0; i < 100; ++i) registry_->Release(i);
}

TEST_F(RegistryTest, AServingModelIsNotUnloaded) {
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  Finish();
  auto status = registry_->Unload(Ref("a.bin"));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIncompatible);
  EXPECT_EQ(registry_->UnloadIdle(), 0U);
  registry_->Release(1);
  EXPECT_TRUE(registry_->Unload(Ref("a.bin")));
  EXPECT_EQ(ledger_.used(), 0U);
  registry_->Stop();
  EXPECT_TRUE(alive_.expired());
}

TEST_F(RegistryTest, IdleModelsGoAfterTheirKeepAlive) {
  registry_->SetKeepAlive(60s);
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  Finish();
  ASSERT_TRUE(registry_->Acquire(Ref("b.bin"), kExact, 2, std::chrono::milliseconds(-1)));
  Finish();
  registry_->Release(2);
  const auto now = Clock::now();
  EXPECT_FALSE(registry_->UnloadExpired(now + 1h));  // one serves, one is for ever
  registry_->Release(1);
  auto due = registry_->UnloadExpired(now + 10s);
  ASSERT_TRUE(due);
  EXPECT_GT(*due, now + 50s);
  registry_->UnloadExpired(now + 2min);
  EXPECT_EQ(registry_->entries().size(), 1U);
  EXPECT_EQ(registry_->UnloadIdle(), 1U);
}

TEST_F(RegistryTest, TheLastToLeaveEndsALoad) {
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));
  registry_->Release(1);
  registry_->Release(2);
  auto outcome = Finish();  // though the loader was never let go
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kCancelled);
  EXPECT_TRUE(outcome.requests.empty());
  EXPECT_TRUE(registry_->entries().empty());
}

TEST_F(RegistryTest, AFailedLoadIsTriedAgainByTheNextRequest) {
  fail_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  auto outcome = Finish();
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.requests, std::vector<uint64_t>{1});
  fail_ = false;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));
  EXPECT_NE(Finish().entry, nullptr);
}

TEST_F(RegistryTest, WhatExceedsTheBudgetIsRefusedAndBooksNothing) {
  exact_bytes_ = 5000;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  auto outcome = Finish();
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(ledger_.used(), 0U);
  outcome = {};
  EXPECT_TRUE(alive_.expired());
}

TEST_F(RegistryTest, AMissingFileIsAnErrorAtOnce) {
  auto entry = registry_->Acquire(Ref("none.bin"), kExact, 1);
  ASSERT_FALSE(entry);
  EXPECT_EQ(entry.error().code, ErrorCode::kNotFound);
}

TEST_F(RegistryTest, APrecisionIsAddedWhileOthersRun) {
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  Finish();
  held_ = true;
  auto entry = registry_->Acquire(Ref("a.bin"), kQ8, 2);
  ASSERT_TRUE(entry);
  EXPECT_TRUE((*entry)->loaded);
  EXPECT_FALSE((*entry)->Holds(kQ8));
  EXPECT_EQ((*entry)->users, std::set<uint64_t>{1});
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 3));
  EXPECT_EQ((*entry)->users, (std::set<uint64_t>{1, 3}));  // needs not wait
  held_ = false;
  const auto outcome = Finish();
  EXPECT_EQ(outcome.requests, Keys{2});
  EXPECT_FALSE(outcome.error);
  ASSERT_EQ(outcome.entry, *entry);
  EXPECT_TRUE(outcome.entry->Holds(kQ8));
  EXPECT_TRUE(outcome.entry->Holds(kExact));
  EXPECT_EQ(outcome.entry->users, (std::set<uint64_t>{1, 2, 3}));
  EXPECT_EQ(ledger_.used(MemoryUse::kModels), 350U);
  EXPECT_EQ(metrics_.Get(Counter::kPrecisionsPrepared), 1U);
}

TEST_F(RegistryTest, APreparedPrecisionIsUsedAgainAndGoesWithItsModel) {
  auto* entry = LoadIdle("a.bin");
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  Finish();
  registry_->Release(2);
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 3));
  EXPECT_EQ(entry->users, std::set<uint64_t>{3});
  EXPECT_EQ(ModelOf(*entry).preparations, 1);
  EXPECT_EQ(loads_, 1);
  registry_->Release(3);
  EXPECT_EQ(registry_->UnloadIdle(), 1U);
  EXPECT_EQ(ledger_.used(), 0U);
}

TEST_F(RegistryTest, SeveralPrecisionsWaitForOneFirstLoad) {
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kBf16, 3));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 4));
  held_ = false;
  const auto first = Finish();
  EXPECT_EQ(first.requests, (Keys{1, 4}));  // those for whose precision the load began
  ASSERT_NE(first.entry, nullptr);
  EXPECT_EQ(first.entry->waiting(), 2U);
  Keys others;
  for (int i = 0; i < 2; ++i) {
    const auto outcome = Finish();
    EXPECT_EQ(outcome.entry, first.entry);
    others.insert(others.end(), outcome.requests.begin(), outcome.requests.end());
  }
  EXPECT_EQ(std::set<uint64_t>(others.begin(), others.end()), (std::set<uint64_t>{2, 3}));
  EXPECT_EQ(first.entry->users.size(), 4U);
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(ModelOf(*first.entry).preparations, 2);
  EXPECT_EQ(ledger_.used(MemoryUse::kModels), 400U);
}

TEST_F(RegistryTest, AFirstLoadThatDoesNotFitLeavesOtherPrecisionsTheirTurn) {
  exact_bytes_ = 5000;
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  held_ = false;
  const auto refused = Finish();
  EXPECT_EQ(refused.requests, Keys{1});
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.error->code, ErrorCode::kOutOfMemory);
  const auto outcome = Finish();
  EXPECT_EQ(outcome.requests, Keys{2});
  ASSERT_NE(outcome.entry, nullptr);
  EXPECT_TRUE(outcome.entry->Holds(kQ8));
  EXPECT_FALSE(outcome.entry->Holds(kExact));
  EXPECT_EQ(ledger_.used(MemoryUse::kModels), 300U);
}

TEST_F(RegistryTest, ACorruptFileFailsInEveryPrecision) {
  fail_ = true;
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  held_ = false;
  const auto outcome = Finish();
  EXPECT_EQ(outcome.requests, (Keys{1, 2}));
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kCorrupt);
  EXPECT_TRUE(registry_->entries().empty());
  EXPECT_EQ(loads_, 1);
}

TEST_F(RegistryTest, APrecisionBeyondTheBudgetIsRefusedAndTheModelStays) {
  precision_bytes_ = 701;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  auto* entry = Finish().entry;
  ASSERT_NE(entry, nullptr);
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  const auto outcome = Finish();
  EXPECT_EQ(outcome.requests, Keys{2});
  EXPECT_EQ(outcome.entry, nullptr);
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(outcome.refused_bytes, 701U);
  ASSERT_EQ(registry_->FindLoaded(Ref("a.bin")), entry);
  EXPECT_EQ(entry->users, std::set<uint64_t>{1});
  EXPECT_EQ(entry->waiting(), 0U);
  EXPECT_FALSE(entry->Holds(kQ8));
  EXPECT_EQ(ledger_.used(), 300U);
  ledger_.SetBudget(1001);
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 3));
  EXPECT_EQ(Finish().requests, Keys{3});
}

TEST_F(RegistryTest, RoomForAPrecisionIsTakenBeforeItIsReadAndGivenBackIfThatFails) {
  LoadIdle("a.bin");
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  while (!reached_) std::this_thread::sleep_for(1ms);  // it is being read
  EXPECT_EQ(ledger_.used(), 350U);
  EXPECT_FALSE(ledger_.Reserve(MemoryUse::kSequences, 700));
  registry_->Release(2);
  ASSERT_TRUE(Finish().error);  // nobody wants it any more
  while (ledger_.used() != 300U) std::this_thread::sleep_for(1ms);
}

TEST_F(RegistryTest, RoomIsMadeOfTheModelUsedLongestAgo) {
  std::ofstream(dir_ / "c.bin") << "ccc";
  LoadIdle("a.bin");
  LoadIdle("b.bin");
  LoadIdle("c.bin");
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));  // used again
  registry_->Release(2);
  EXPECT_TRUE(registry_->MakeRoom(100));  // was free
  EXPECT_EQ(registry_->entries().size(), 3U);
  EXPECT_TRUE(registry_->MakeRoom(101));
  EXPECT_EQ(registry_->entries().size(), 2U);
  EXPECT_EQ(registry_->FindLoaded(Ref("b.bin")), nullptr);
  EXPECT_FALSE(registry_->MakeRoom(1001));  // nothing goes in vain
  EXPECT_EQ(registry_->entries().size(), 2U);
  EXPECT_TRUE(registry_->MakeRoom(700));
  EXPECT_EQ(registry_->FindLoaded(Ref("c.bin")), nullptr);
  EXPECT_NE(registry_->FindLoaded(Ref("a.bin")), nullptr);
  EXPECT_EQ(registry_->Expendable(), 300U);
}

TEST_F(RegistryTest, WhatIsPinnedOrInUseMakesNoRoom) {
  auto* pinned = LoadIdle("a.bin");
  pinned->pinned = true;
  ASSERT_TRUE(registry_->Acquire(Ref("b.bin"), kExact, 2));
  Finish();
  EXPECT_EQ(registry_->Expendable(), 0U);
  EXPECT_EQ(registry_->KeptBeside(2), 600U);
  EXPECT_EQ(registry_->KeptBeside(3), 300U);
  EXPECT_FALSE(registry_->MakeRoom(500));
  registry_->Release(2);
  EXPECT_EQ(registry_->Expendable(), 300U);
  EXPECT_FALSE(registry_->UnloadExpired(Clock::now() + 24h));
  EXPECT_EQ(registry_->entries().size(), 1U);  // the pinned one has no time
  EXPECT_EQ(registry_->UnloadIdle(), 0U);
  EXPECT_TRUE(registry_->Unload(Ref("a.bin")));
  EXPECT_EQ(ledger_.used(), 0U);
}

TEST_F(RegistryTest, PinnedModelsGoWithAllWhenThatIsAskedFor) {
  LoadIdle("a.bin")->pinned = true;
  LoadIdle("b.bin");
  EXPECT_EQ(registry_->UnloadIdle(ModelRegistry::Pinned::kGo), 2U);
}

TEST_F(RegistryTest, AReplacedModelLeavesItsPinAndItsTimeToTheNewOne) {
  auto* old = LoadIdle("a.bin");
  old->pinned = true;
  old->keep_alive = 7s;
  std::ofstream(dir_ / "a.bin") << "another content";
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));
  const auto* fresh = Finish().entry;
  ASSERT_NE(fresh, nullptr);
  EXPECT_TRUE(fresh->pinned);
  EXPECT_EQ(fresh->keep_alive, 7s);
  EXPECT_EQ(registry_->entries().size(), 1U);
}

TEST_F(RegistryTest, TellsWhenAModelGoes) {
  auto* entry = LoadIdle("a.bin");
  EXPECT_EQ(entry->expires(), entry->last_used + entry->keep_alive);
  entry->keep_alive = -1ms;
  EXPECT_FALSE(entry->expires());
  entry->keep_alive = 1s;
  entry->pinned = true;
  EXPECT_FALSE(entry->expires());
  entry->pinned = false;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 2));
  EXPECT_FALSE(entry->expires());  // in use
}

TEST_F(RegistryTest, TheLastToLeaveEndsAPreparation) {
  auto* entry = LoadIdle("a.bin");
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 3));
  registry_->Release(2);
  registry_->Release(3);
  const auto outcome = Finish();  // though the loader was never let go
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kCancelled);
  EXPECT_TRUE(outcome.requests.empty());
  EXPECT_EQ(registry_->FindLoaded(Ref("a.bin")), entry);
  EXPECT_FALSE(entry->Holds(kQ8));
  EXPECT_EQ(ledger_.used(), 300U);
}

TEST_F(RegistryTest, WhoComesWhileAnEndedTaskEndsGetsANewOne) {
  for (const auto precision : {kExact, kQ8}) {  // a first load, then a preparation
    held_ = true;
    ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), precision, 1));
    registry_->Release(1);
    ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), precision, 2));
    const auto ended = Finish();
    EXPECT_TRUE(ended.requests.empty());
    EXPECT_FALSE(ended.error);
    held_ = false;
    const auto outcome = Finish();
    EXPECT_EQ(outcome.requests, Keys{2});
    ASSERT_NE(outcome.entry, nullptr);
    EXPECT_TRUE(outcome.entry->Holds(precision));
    registry_->Release(2);
  }
  EXPECT_EQ(registry_->entries().size(), 1U);
}

TEST_F(RegistryTest, AFirstLoadThatNobodyWantsGivesWayToTheNextPrecision) {
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kExact, 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kBf16, 3));
  registry_->Release(1);
  registry_->Release(3);  // had no task yet
  EXPECT_TRUE(Finish().requests.empty());
  held_ = false;
  const auto outcome = Finish();
  EXPECT_EQ(outcome.requests, Keys{2});
  ASSERT_NE(outcome.entry, nullptr);
  EXPECT_TRUE(outcome.entry->Holds(kQ8));
  EXPECT_FALSE(outcome.entry->Holds(kExact));
  EXPECT_TRUE(outcome.entry->preparing.empty());
}

TEST_F(RegistryTest, AModelWhosePrecisionIsAwaitedIsNotUnloaded) {
  registry_->SetKeepAlive(0ms);
  auto* entry = LoadIdle("a.bin");
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  const auto status = registry_->Unload(Ref("a.bin"));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIncompatible);
  EXPECT_EQ(registry_->UnloadIdle(), 0U);
  registry_->UnloadExpired(Clock::now() + 1h);
  EXPECT_EQ(registry_->FindLoaded(Ref("a.bin")), entry);
  held_ = false;
  EXPECT_EQ(Finish().requests, Keys{2});
}

TEST_F(RegistryTest, WhatAPreparationGivesToAModelThatIsGoneGoesToo) {
  LoadIdle("a.bin");
  held_ = true;
  deaf_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  registry_->Release(2);
  EXPECT_EQ(registry_->UnloadIdle(), 1U);
  held_ = false;
  const auto outcome = Finish();
  EXPECT_TRUE(outcome.requests.empty());
  EXPECT_EQ(ledger_.used(), 0U);
  registry_->Stop();
  EXPECT_TRUE(alive_.expired());
}

TEST_F(RegistryTest, AReplacedModelStaysForThoseWhoAwaitAPrecisionOfIt) {
  auto* old = LoadIdle("a.bin");
  const uint64_t old_id = old->id;
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  std::ofstream(dir_ / "a.bin") << "another content";
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 3));
  EXPECT_EQ(registry_->entries().size(), 2U);
  held_ = false;
  const auto outcome = Finish();
  EXPECT_EQ(outcome.entry, old);
  EXPECT_EQ(outcome.requests, Keys{2});
  EXPECT_EQ(Finish().requests, Keys{3});
  registry_->Release(2);
  EXPECT_EQ(registry_->Find(old_id), nullptr);
}

TEST_F(RegistryTest, ProgressIsToldPerPrecision) {
  auto* entry = LoadIdle("a.bin");
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kQ8, 2));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), kBf16, 3));
  registry_->OnProgress({entry->id, kBf16, 0.25});
  EXPECT_EQ(entry->preparing.at(kBf16).progress, 0.25);
  EXPECT_EQ(entry->preparing.at(kQ8).progress, 0);
  held_ = false;
  Finish();
  Finish();
  registry_->OnProgress({entry->id, kBf16, 0.5});  // too late, and no harm
  EXPECT_TRUE(entry->preparing.empty());
}

class CatalogTest : public ::testing::Test {
 protected:
  CatalogTest() {
    std::filesystem::create_directories(dir_ / "user");
    std::filesystem::create_directories(dir_ / "bundled");
    std::ofstream(dir_ / "user/mine.bin") << "x";
    std::ofstream(dir_ / "bundled/story-k3.bin") << "x";
    std::ofstream(dir_ / "bundled/mine.bin") << "x";
    folders_ = {dir_ / "user", dir_ / "bundled"};
  }
  TempDir dir_;
  ModelFolders folders_;
  Config config_;
};

TEST_F(CatalogTest, PathAliasUserBundledInThisOrder) {
  config_.aliases["story"] = dir_ / "user/mine.bin";
  config_.aliases["mine"] = "story-k3";
  EXPECT_EQ(*ResolveModel(dir_ / "bundled/mine.bin", config_, folders_), dir_ / "bundled/mine.bin");
  EXPECT_EQ(*ResolveModel("story", config_, folders_), dir_ / "user/mine.bin");
  EXPECT_EQ(*ResolveModel("mine", config_, folders_), dir_ / "bundled/story-k3.bin");
  config_.aliases.clear();
  EXPECT_EQ(*ResolveModel("mine", config_, folders_), dir_ / "user/mine.bin");
  EXPECT_EQ(*ResolveModel("story-k3.bin", config_, folders_), dir_ / "bundled/story-k3.bin");
}

TEST_F(CatalogTest, TheDefaultIsTheConfigsElseTheBundledModel) {
  EXPECT_EQ(*ResolveModel("", config_, folders_), dir_ / "bundled/story-k3.bin");
  config_.default_model = "mine";
  EXPECT_EQ(*ResolveModel("", config_, folders_), dir_ / "user/mine.bin");
}

TEST_F(CatalogTest, MissingModelsSayWhereWasLooked) {
  auto missing = ResolveModel("nosuch", config_, folders_);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(dir_ / "user"), std::string::npos);
  EXPECT_NE(missing.error().hint.find("mk models"), std::string::npos);
  EXPECT_FALSE(ResolveModel("relative/x.bin", config_, folders_));
}

TEST_F(CatalogTest, ListsWhatIsUnusableWithTheReason) {
  config_.aliases["gone"] = "/nonexistent/x.bin";
  ModelCatalog catalog;
  auto list = catalog.List(config_, folders_);
  ASSERT_EQ(list.size(), 4U);
  EXPECT_EQ(list[0].name, "gone");
  EXPECT_EQ(list[0].origin, "alias");
  for (const CatalogEntry& entry : list) {
    EXPECT_FALSE(entry.error.empty()) << entry.name;  // none is a model
    EXPECT_EQ(entry.is_default, entry.path == dir_ / "bundled/story-k3.bin");
  }
}

}  // namespace
}  // namespace mk::daemon
