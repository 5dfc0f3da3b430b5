// The disk of the prefix cache: what is kept, found and refused; and the cache with a disk.

#include "daemon/prefix_disk.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "daemon/prefix_cache.h"
#include "engine/pack/pack_file.h"
#include "fake_states.h"
#include "temp_dir.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

using Ids = std::vector<int32_t>;
constexpr PrefixKind kKind{Precision::kExact, true};
constexpr uint64_t kPlenty = 100'000'000;

Ids Count(size_t n, int32_t first = 0) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

PagedSequence StateOf(const Ids& ids, const PrefixKind& kind = kKind) {
  SequenceOptions options;
  options.precision = kind.precision;
  options.chunked_prefill = kind.chunked_prefill;
  PagedSequence state(options);
  state.Read(ids);
  return state;
}

unsigned ModeOf(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

class PrefixDiskTest : public ::testing::Test {
 protected:
  std::unique_ptr<PrefixDisk> Disk(std::optional<uint64_t> limit = kPlenty) {
    return std::make_unique<PrefixDisk>(dir_, limit, [this] { return now_.load(); });
  }
  // Everything that was posted so far has been done.
  static void Wait(const PrefixDisk& disk) {
    while (disk.writing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  PrefixDisk::FileRef Put(PrefixDisk& disk, const Ids& ids, double value = 1,
                          const PrefixKind& kind = kKind) {
    Wait(disk);
    return disk.Save(*model_, {kind, ids, true}, logits_, StateOf(ids, kind), value);
  }
  size_t Found(const PrefixDisk& disk, const Ids& prompt, const PrefixKind& kind = kKind,
               size_t at_least = 1) const {
    const auto file = disk.FindLongest(fingerprint_, kind, prompt, 64, at_least);
    return file ? disk.HeadOf(file)->tokens.size() : 0;
  }
  std::vector<std::string> Files(const std::string& suffix) const {
    std::vector<std::string> names;
    if (!fs::exists(folder_)) return names;
    for (const auto& one : fs::directory_iterator(folder_)) {
      if (one.path().string().ends_with(suffix)) names.push_back(one.path().string());
    }
    return names;
  }

  TempDir temp_;
  const std::string dir_ = temp_ / "prefix";
  const std::string fingerprint_ = std::string(32, 'a');
  const std::string folder_ = dir_ + "/" + std::string(16, 'a');
  std::shared_ptr<PagedModel> model_ = std::make_shared<PagedModel>(fingerprint_);
  std::vector<float> logits_ = std::vector<float>(120'000, 0.5f);
  std::atomic<double> now_{1'000'000'000.0};
};

TEST_F(PrefixDiskTest, WhatIsKeptIsFoundByTheNextDaemon) {
  {
    auto disk = Disk();
    disk->Open(model_->info());
    ASSERT_TRUE(Put(*disk, Count(200)));
    EXPECT_EQ(Found(*disk, Count(200)), 200U);
    EXPECT_EQ(disk->counts().files, 1U);
    EXPECT_EQ(disk->counts().writes, 1U);
  }
  EXPECT_EQ(ModeOf(dir_), 0700U);
  EXPECT_EQ(ModeOf(folder_), 0700U);
  ASSERT_EQ(Files(".mkmem").size(), 1U);
  EXPECT_EQ(ModeOf(Files(".mkmem")[0]), 0600U);
  auto disk = Disk();
  EXPECT_EQ(Found(*disk, Count(200)), 0U);  // not open
  disk->Open(model_->info());
  EXPECT_EQ(Found(*disk, Count(200)), 200U);
  const auto file = disk->FindLongest(fingerprint_, kKind, Count(200), 64, 1);
  auto loaded = disk->Load(file, *model_);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(static_cast<PagedSequence&>(*loaded->state).tokens(), Count(200));
  EXPECT_EQ(loaded->logits, logits_);
  EXPECT_EQ(disk->counts().loads, 1U);
  EXPECT_EQ(disk->List().at(std::string(16, 'a')).model, model_->info().path);
  disk->Close(fingerprint_);
  EXPECT_EQ(Found(*disk, Count(200)), 0U);
}

TEST_F(PrefixDiskTest, OnlyUsableBeginningsOfTheSameKindAreFound) {
  auto disk = Disk();
  disk->Open(model_->info());
  Put(*disk, Count(192));
  Put(*disk, Count(150));
  EXPECT_EQ(Found(*disk, Count(150)), 150U);
  EXPECT_EQ(Found(*disk, Count(191)), 150U);
  EXPECT_EQ(Found(*disk, Count(300)), 192U);
  EXPECT_EQ(Found(*disk, Count(300), kKind, 193), 0U);
  Ids other = Count(300);
  other[10] = 7;
  EXPECT_EQ(Found(*disk, other), 0U);
  EXPECT_EQ(disk->Shared(fingerprint_, kKind, other), 10U);
  EXPECT_EQ(Found(*disk, Count(300), {Precision::kQ8, true}), 0U);
  EXPECT_EQ(Found(*disk, Count(300), {Precision::kExact, false}), 0U);
}

TEST_F(PrefixDiskTest, BadFilesAreSetAsideOnce) {
  std::string whole;
  {
    auto disk = Disk();
    disk->Open(model_->info());
    ASSERT_TRUE(Put(*disk, Count(200)));
    std::ifstream in(Files(".mkmem")[0], std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto write = [&](const std::string& name, std::string bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
  };
  const auto changed = [&](size_t at, const std::string& to) {
    std::string bytes = whole;
    return bytes.replace(at, to.size(), to);
  };
  write("empty.mkmem", "");
  write("text.mkmem", "this is no pack at all");
  write("torn.mkmem", whole.substr(0, whole.size() / 2));
  write("short.mkmem", whole.substr(0, 100));
  write("newer.mkmem", changed(0, "MKMEM003"));
  write("old.mkmem", changed(0, "MKMEM001"));
  write("header.mkmem", changed(20, "x"));
  write("huge.mkmem", changed(104, "\xff\xff\xff\xff"));
  uint64_t table = 0;
  std::memcpy(&table, whole.data() + 112, sizeof table);
  write("table.mkmem", changed(table + 8, "xyz"));
  write("half.mkmem.tmp.12", whole.substr(0, 1000));
  auto stranger = std::make_shared<PagedModel>(std::string(16, 'a') + std::string(16, 'b'));
  ASSERT_TRUE(
      SavePack(folder_ + "/foreign.mkmem", *stranger, StateOf(Count(130)), {Count(130), {}, {}}));
  ASSERT_TRUE(SavePack(folder_ + "/untold.mkmem", *model_, StateOf(Count(130)), {}));

  auto disk = Disk();
  disk->Open(model_->info());
  EXPECT_EQ(Found(*disk, Count(300)), 0U);    // 200 lies inside a block
  EXPECT_EQ(Found(*disk, Count(200)), 200U);  // the good one is there
  EXPECT_EQ(Files(".bad").size(), 11U);
  EXPECT_EQ(Files(".mkmem").size(), 1U);
  EXPECT_TRUE(Files(".tmp.12").empty());
  EXPECT_EQ(disk->counts().refused, 11U);
  EXPECT_EQ(disk->counts().bad, 11U);
  disk->Close(fingerprint_);
  disk->Open(model_->info());
  EXPECT_EQ(disk->counts().refused, 11U);  // never again
  disk.reset();
  disk = Disk();
  disk->Open(model_->info());
  EXPECT_EQ(disk->counts().refused, 0U);
  EXPECT_EQ(disk->counts().bad, 11U);
}

TEST_F(PrefixDiskTest, DamageBehindTheTokensIsFoundByTheLoad) {
  auto disk = Disk();
  disk->Open(model_->info());
  const auto file = Put(*disk, Count(200));
  {
    std::fstream out(file->path(), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(-3, std::ios::end);
    out.put('x');
  }
  EXPECT_FALSE(disk->Load(file, *model_));
  EXPECT_FALSE(disk->Holds(file));
  EXPECT_EQ(Files(".bad").size(), 1U);
  EXPECT_EQ(Found(*disk, Count(200)), 0U);
  EXPECT_FALSE(disk->Load(file, *model_));
  EXPECT_EQ(disk->counts().refused, 1U);
  // A good one can be written in its place.
  EXPECT_TRUE(Put(*disk, Count(200)));
  EXPECT_EQ(Found(*disk, Count(200)), 200U);
}

TEST_F(PrefixDiskTest, AFileThatSomebodyRemovedOrReplacedIsNoTrouble) {
  auto disk = Disk();
  disk->Open(model_->info());
  auto file = Put(*disk, Count(200));
  fs::remove(file->path());
  EXPECT_FALSE(disk->Load(file, *model_));
  EXPECT_EQ(disk->counts().files, 0U);
  EXPECT_EQ(disk->counts().refused, 0U);
  file = Put(*disk, Count(200));
  // Another good state under its name.
  PackContents contents{Count(140), logits_, {}};
  ASSERT_TRUE(SavePack(file->path(), *model_, StateOf(Count(140)), contents));
  EXPECT_FALSE(disk->Load(file, *model_));
  EXPECT_EQ(Files(".bad").size(), 1U);
}

TEST_F(PrefixDiskTest, TheLeastUsefulGoesFirstAlsoAfterARestart) {
  const uint64_t one = [&] {
    auto disk = Disk();
    Put(*disk, Count(200, 9000));
    const uint64_t bytes = disk->counts().bytes;
    disk->Clean([](const auto&, const auto&) { return true; });
    return bytes;
  }();
  const uint64_t limit = 3 * one + one / 2;
  {
    auto disk = Disk(limit);
    disk->Open(model_->info());
    const auto first = Put(*disk, Count(200, 1000));
    now_ = now_ + 10;
    Put(*disk, Count(200, 2000));
    now_ = now_ + 10;
    Put(*disk, Count(200, 3000));
    disk->Credit(first);
    disk->Credit(first);
    EXPECT_NEAR(disk->ValueOf(first), 3, 0.01);
    Wait(*disk);
  }
  now_ = now_ + 10;
  auto disk = Disk(limit);
  disk->Open(model_->info());
  EXPECT_EQ(disk->counts().files, 3U);
  Put(*disk, Count(200, 4000));
  EXPECT_EQ(disk->counts().files, 3U);
  EXPECT_LE(disk->counts().bytes, limit);
  EXPECT_EQ(Found(*disk, Count(200, 1000)), 200U);
  EXPECT_EQ(Found(*disk, Count(200, 2000)), 0U);  // the oldest without a use
  EXPECT_EQ(Found(*disk, Count(200, 3000)), 200U);
  // Fame fades: after many half-lives a use counts for nothing.
  now_ = now_ + 20 * kDiskHalfLife;
  for (int32_t i = 5; i < 8; ++i) {
    Put(*disk, Count(200, 1000 * i));
    now_ = now_ + 1;
  }
  EXPECT_EQ(Found(*disk, Count(200, 1000)), 0U);
  EXPECT_EQ(disk->counts().evicted, 4U);
  // One that is worth less than all that would have to go is not kept.
  EXPECT_FALSE(Put(*disk, Count(200, 9000), 0.01));
  EXPECT_EQ(disk->counts().evicted, 4U);
}

TEST_F(PrefixDiskTest, RefusedFilesGoBeforeAllOthers) {
  auto disk = Disk();
  disk->Open(model_->info());
  auto bad = Put(*disk, Count(200, 1000), 100);
  const auto good = Put(*disk, Count(200, 2000), 0.1);
  fs::resize_file(bad->path(), 1000);
  EXPECT_FALSE(disk->Load(bad, *model_));
  disk->SetLimit(disk->counts().bytes - 1);
  Wait(*disk);
  EXPECT_TRUE(disk->Holds(good));
  EXPECT_TRUE(Files(".bad").empty());
}

TEST_F(PrefixDiskTest, StaysWithinItsLimitWhenThatIsLowered) {
  auto disk = Disk();
  disk->Open(model_->info());
  for (int32_t i = 0; i < 6; ++i) Put(*disk, Count(200, 1000 * i));
  const uint64_t one = disk->counts().bytes / 6;
  disk->SetLimit(2 * one + 10);
  Wait(*disk);
  EXPECT_EQ(disk->counts().files, 2U);
  EXPECT_EQ(Files(".mkmem").size(), 2U);
  EXPECT_FALSE(Put(*disk, Count(100'000)) && false);  // whatever comes of it,
  EXPECT_LE(disk->counts().bytes, 2 * one + 10);      // the limit holds
}

TEST_F(PrefixDiskTest, OffMeansNothingIsMade) {
  auto disk = Disk(0);
  disk->Open(model_->info());
  EXPECT_FALSE(disk->on());
  EXPECT_FALSE(Put(*disk, Count(200)));
  EXPECT_FALSE(fs::exists(dir_));
  EXPECT_GT(Disk(std::nullopt)->counts().limit, 0U);
}

TEST_F(PrefixDiskTest, AnotherDaemonHasTheFolder) {
  auto first = Disk();
  first->Open(model_->info());
  ASSERT_TRUE(Put(*first, Count(200)));
  auto second = Disk();
  second->Open(model_->info());
  EXPECT_EQ(Found(*second, Count(200)), 0U);
  EXPECT_FALSE(Put(*second, Count(300)));
  EXPECT_NE(second->trouble().find("another daemon"), std::string::npos);
  EXPECT_EQ(Files(".mkmem").size(), 1U);
  first.reset();
  now_ = now_ + 1000;
  EXPECT_TRUE(Put(*second, Count(300)));
  EXPECT_EQ(second->trouble(), "");
}

TEST_F(PrefixDiskTest, AFolderThatOthersCanWriteToIsNotUsed) {
  fs::create_directories(dir_);
  fs::permissions(dir_, fs::perms::all);
  auto disk = Disk();
  EXPECT_FALSE(Put(*disk, Count(200)));
  EXPECT_NE(disk->trouble().find("written to by others"), std::string::npos);
}

TEST_F(PrefixDiskTest, CleanForgetsAllOfAModel) {
  auto other = std::make_shared<PagedModel>(std::string(32, 'c'));
  auto disk = Disk();
  disk->Open(model_->info());
  Put(*disk, Count(200));
  Put(*disk, Count(300));
  ASSERT_TRUE(disk->Save(*other, {kKind, Count(200), true}, logits_, StateOf(Count(200)), 1));
  const auto removed = disk->Clean(
      [&](const std::string&, const std::string& model) { return model == model_->info().path; });
  EXPECT_EQ(removed.files, 2U);
  EXPECT_GT(removed.bytes, 0U);
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_EQ(disk->counts().files, 1U);
  EXPECT_EQ(disk->counts().evicted, 0U);
  EXPECT_TRUE(Put(*disk, Count(200)));  // and it goes on
}

// ---- The cache with a disk ----

class TwoTierTest : public PrefixDiskTest {
 protected:
  void Store(const Ids& ids) { shelf_->Store(kKind, ids, StateOf(ids), logits_); }
  void Boot(uint64_t limit = 500'000'000) {
    cache_ = std::make_unique<PrefixCache>(ledger_, limit, disk_.get());
    shelf_ = cache_->NewShelf(model_);
  }
  void Reboot() {
    Wait(*disk_);
    shelf_.reset();
    Wait(*disk_);
    cache_.reset();
    disk_.reset();
    disk_ = Disk();
    Boot();
  }

  Ledger ledger_{1'000'000'000};
  std::unique_ptr<PrefixDisk> disk_ = Disk();
  std::unique_ptr<PrefixCache> cache_;
  std::shared_ptr<PrefixShelf> shelf_;
};

TEST_F(TwoTierTest, WhatWasUsedIsWrittenAndFetchedByTheNextDaemon) {
  Boot();
  Store(Count(200));
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().files, 0U);  // has not proved useful
  EXPECT_EQ(shelf_->Find(kKind, Count(200)).tokens, 200U);
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().files, 1U);
  EXPECT_EQ(shelf_->Find(kKind, Count(200)).tokens, 200U);
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().writes, 1U);  // once
  Reboot();
  EXPECT_EQ(shelf_->Find(kKind, Count(200)).tokens, 0U);  // a lookup reads no file
  EXPECT_TRUE(shelf_->WantsFetch(kKind, Count(200)));
  EXPECT_FALSE(shelf_->WantsFetch(kKind, Count(200, 1)));
  shelf_->Fetch(kKind, Count(200));
  EXPECT_FALSE(shelf_->WantsFetch(kKind, Count(200)));
  const auto found = shelf_->Find(kKind, Count(200));
  EXPECT_EQ(found.tokens, 200U);
  EXPECT_EQ(found.logits, logits_);
  EXPECT_EQ(static_cast<PagedSequence&>(*found.state).tokens(), Count(200));
  EXPECT_EQ(cache_->counts().disk_hits, 1U);
  shelf_->Find(kKind, Count(200));
  EXPECT_EQ(cache_->counts().disk_hits, 1U);  // memory has it now
  EXPECT_EQ(disk_->counts().loads, 1U);
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().writes, 0U);
}

TEST_F(TwoTierTest, WhatGoesForLackOfRoomIsWrittenBefore) {
  const uint64_t one = 4 * logits_.size() + 5'000;
  Boot(3 * one);
  for (int32_t i = 0; i < 6; ++i) {
    Store(Count(200, 1000 * i));
    Wait(*disk_);
  }
  EXPECT_EQ(cache_->counts().states, 2U);
  EXPECT_GE(disk_->counts().files, 4U);
  EXPECT_TRUE(shelf_->WantsFetch(kKind, Count(200)));
  shelf_->Fetch(kKind, Count(200));
  EXPECT_EQ(shelf_->Find(kKind, Count(200)).tokens, 200U);
  EXPECT_LE(cache_->counts().bytes, 3 * one);
  EXPECT_EQ(ledger_.used(), cache_->counts().bytes);
}

TEST_F(TwoTierTest, AFetchedStateDoesNotGoBeforeItsRunComes) {
  Boot();
  Store(Count(200, 5000));
  shelf_->Find(kKind, Count(200, 5000));
  Reboot();
  for (int32_t i = 0; i < 3; ++i) {
    Store(Count(200, 1000 * i));
    for (int j = 0; j < 5; ++j) shelf_->Find(kKind, Count(200, 1000 * i));
  }
  shelf_->Fetch(kKind, Count(200, 5000));
  cache_->Reclaim(1);
  cache_->Reclaim(1);
  EXPECT_EQ(shelf_->Find(kKind, Count(200, 5000)).tokens, 200U);
}

TEST_F(TwoTierTest, AModelThatGoesLeavesItsStates) {
  Boot();
  Store(Count(200));
  Store(Count(100, 7));  // too short to be worth a file
  shelf_.reset();
  EXPECT_EQ(ledger_.used(), 0U);  // at once
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().files, 1U);
  shelf_ = cache_->NewShelf(model_);
  EXPECT_TRUE(shelf_->WantsFetch(kKind, Count(200)));
}

TEST_F(TwoTierTest, ADaemonThatLeavesWritesWhatIsWorthIt) {
  Boot();
  Store(Count(200));
  Store(Count(300, 1000));
  cache_->SaveValuable();
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().files, 2U);
  cache_->SaveValuable();
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().writes, 2U);
}

TEST_F(TwoTierTest, ABadFileGivesWayToTheNextShorterOne) {
  Boot();
  Store(Count(128));
  Store(Count(256));
  cache_->SaveValuable();
  Reboot();
  const auto longest = disk_->FindLongest(fingerprint_, kKind, Count(300), 64, 1);
  ASSERT_TRUE(longest);
  fs::resize_file(longest->path(), 2000);
  shelf_->Fetch(kKind, Count(300));
  EXPECT_EQ(shelf_->Find(kKind, Count(300)).tokens, 128U);
  EXPECT_EQ(Files(".bad").size(), 1U);
  EXPECT_FALSE(shelf_->WantsFetch(kKind, Count(300)));
}

TEST_F(TwoTierTest, ForgetAndCleanLeaveNothing) {
  Boot();
  Store(Count(200));
  shelf_->Find(kKind, Count(200));
  Wait(*disk_);
  const auto all = [](const auto&...) { return true; };
  const auto forgotten = cache_->Forget(all);
  EXPECT_EQ(forgotten.states, 1U);
  EXPECT_GT(forgotten.bytes, 0U);
  EXPECT_EQ(disk_->Clean(all).files, 1U);
  EXPECT_EQ(ledger_.used(), 0U);
  EXPECT_FALSE(shelf_->WantsFetch(kKind, Count(200)));
  Store(Count(200));
  EXPECT_EQ(shelf_->Find(kKind, Count(200)).tokens, 200U);
  Wait(*disk_);
  EXPECT_EQ(disk_->counts().files, 1U);
}

}  // namespace
}  // namespace mk::daemon
