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

class RegistryTest : public ::testing::Test {
 protected:
  RegistryTest() {
    std::ofstream(dir_ / "a.bin") << "a";
    std::ofstream(dir_ / "b.bin") << "bb";
    Make();
  }

  void Make() {
    registry_ = std::make_unique<ModelRegistry>(
        ledger_, counters_,
        [this](const ModelRef& ref, const LoadOptions& options) { return Load(ref, options); },
        [this](LoadEvent event) {
          std::lock_guard lock(mutex_);
          events_.push_back(std::move(event));
          changed_.notify_all();
        });
  }

  Result<LoadedModel> Load(const ModelRef& ref, const LoadOptions& options) {
    ++loads_;
    while (held_.load()) {
      if (!options.progress(0.5)) return Fail(ErrorCode::kCancelled, "given up");
      std::this_thread::sleep_for(1ms);
    }
    if (fail_.load()) return Fail(ErrorCode::kCorrupt, ref.path + " is corrupt");
    LoadedModel loaded;
    auto model = std::make_shared<FakeModel>();
    model->SetResidentBytes(bytes_.load());
    loaded.model = model;
    alive_ = model;
    return loaded;
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
  Counters counters_;
  std::atomic<int> loads_{0};
  std::atomic<bool> held_{false};
  std::atomic<bool> fail_{false};
  std::atomic<uint64_t> bytes_{300};
  std::weak_ptr<const Model> alive_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LoadEvent> events_;
  std::unique_ptr<ModelRegistry> registry_;
};

TEST_F(RegistryTest, IsLoadedOnceForAllWhoWait) {
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 2));
  held_ = false;
  auto outcome = Finish();
  EXPECT_EQ(outcome.requests, (std::vector<uint64_t>{1, 2}));
  ASSERT_NE(outcome.entry, nullptr);
  EXPECT_EQ(outcome.entry->users.size(), 2U);
  auto third = registry_->Acquire(Ref("a.bin"), 3);
  ASSERT_TRUE(third);
  EXPECT_NE((*third)->loaded, nullptr);
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(ledger_.used(MemoryUse::kModels), 300U);
}

TEST_F(RegistryTest, AChangedFileIsANewModelAndRunningRequestsKeepTheOld) {
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
  auto* old = Finish().entry;
  ASSERT_NE(old, nullptr);
  const uint64_t old_id = old->id;
  std::ofstream(dir_ / "a.bin") << "another content";
  auto fresh = registry_->Acquire(Ref("a.bin"), 2);
  ASSERT_TRUE(fresh);
  EXPECT_NE((*fresh)->id, old_id);
  ASSERT_NE(Finish().entry, nullptr);
  EXPECT_NE(registry_->Find(old_id), nullptr);  // request 1 still runs on it
  registry_->Release(1);
  EXPECT_EQ(registry_->Find(old_id), nullptr);
  EXPECT_EQ(registry_->entries().size(), 1U);
}

TEST_F(RegistryTest, AnIdleModelGoesAtOnceWhenItsFileIsReplaced) {
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
  Finish();
  registry_->Release(1);
  std::ofstream(dir_ / "a.bin") << "another content";
  held_ = true;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 2));
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
    auto entry = registry_->Acquire(Ref(name.c_str()), i);
    refused = !entry;
    if (refused) {
      EXPECT_EQ(entry.error().code, ErrorCode::kOutOfMemory);
    }
  }
  EXPECT_TRUE(refused);
  for (uint64_t i = 0; i < 100; ++i) registry_->Release(i);
}

TEST_F(RegistryTest, AServingModelIsNotUnloaded) {
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
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
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
  Finish();
  ASSERT_TRUE(registry_->Acquire(Ref("b.bin"), 2, std::chrono::milliseconds(-1)));
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
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 2));
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
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
  auto outcome = Finish();
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.requests, std::vector<uint64_t>{1});
  fail_ = false;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 2));
  EXPECT_NE(Finish().entry, nullptr);
}

TEST_F(RegistryTest, WhatExceedsTheBudgetIsRefusedAndBooksNothing) {
  bytes_ = 5000;
  ASSERT_TRUE(registry_->Acquire(Ref("a.bin"), 1));
  auto outcome = Finish();
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(ledger_.used(), 0U);
  outcome = {};
  EXPECT_TRUE(alive_.expired());
}

TEST_F(RegistryTest, AMissingFileIsAnErrorAtOnce) {
  auto entry = registry_->Acquire(Ref("none.bin"), 1);
  ASSERT_FALSE(entry);
  EXPECT_EQ(entry.error().code, ErrorCode::kNotFound);
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
