// Records of jobs on disk: whole or not there, and hostile until checked.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>

#include "daemon/jobs/job_runner.h"
#include "daemon/jobs/job_store.h"
#include "daemon/jobs/job_writer.h"
#include "engine/format/digest.h"
#include "tests/unit/daemon/temp_dir.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;
using protocol::JobRecord;
using protocol::JobState;

JobRecord Some(const std::string& id = "abc234") {
  JobRecord record;
  record.id = id;
  record.spec.verify = protocol::VerifyArgs{"/m.bin"};
  record.what = "/m.bin";
  record.state = JobState::kDone;
  record.asked_by = "mk 7";
  record.detached = true;
  record.runs = 2;
  record.created_ms = 1;
  record.started_ms = 2;
  record.ended_ms = 3;
  record.phase = "verify";
  record.done = 5;
  record.total = 6;
  record.unit = "bytes";
  record.kept = 4;
  record.checkpoint = std::string("\x00\xFF\x80", 3);
  record.result.verify = protocol::VerifyDone();
  record.result.verify->path = "/m.bin";
  return record;
}

void Write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string ErrorOf(const std::string& bytes) {
  auto record = DecodeJobFile(bytes);
  return record ? "" : record.error().message;
}

// A file whose payload has been tampered with by somebody who knows how to make a digest.
std::string WithPayload(const std::string& payload) {
  std::string bytes = EncodeJobFile(Some()).substr(0, 8);
  const uint64_t size = payload.size();
  const uint64_t digest = Xxh3Of(std::as_bytes(std::span(payload.data(), payload.size())));
  bytes.append(reinterpret_cast<const char*>(&size), 8);
  bytes.append(reinterpret_cast<const char*>(&digest), 8);
  return bytes + payload;
}

std::string Replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

class JobStoreTest : public ::testing::Test {
 protected:
  std::string folder() const { return dir_.path() + "/state/jobs"; }
  TempDir dir_;
};

TEST_F(JobStoreTest, WhatIsSavedComesBack) {
  JobStore store(folder());
  JobRecord failed = Some("xyz789");
  failed.state = JobState::kFailed;
  failed.result = {};
  failed.error = protocol::JobError{"io_error", "m", "h"};
  ASSERT_TRUE(store.Save(Some()));
  ASSERT_TRUE(store.Save(failed));
  auto loaded = JobStore(folder()).Load();
  ASSERT_TRUE(loaded.has_value());
  EXPECT_TRUE(loaded->warnings.empty());
  ASSERT_EQ(loaded->records.size(), 2u);
  EXPECT_EQ(loaded->records[0], Some());
  EXPECT_EQ(loaded->records[1], failed);
  struct stat info {};
  ASSERT_EQ(stat(folder().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_TRUE(store.Remove("abc234"));
  ASSERT_TRUE(store.Remove("abc234"));
  EXPECT_EQ(store.Load()->records.size(), 1u);
}

TEST_F(JobStoreTest, EveryFlippedBitAndEveryTruncationIsSeen) {
  const std::string whole = EncodeJobFile(Some());
  ASSERT_EQ(ErrorOf(whole), "");
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    EXPECT_NE(ErrorOf(damaged), "") << at;
    EXPECT_NE(ErrorOf(whole.substr(0, at)), "") << at;
  }
  EXPECT_NE(ErrorOf(whole + "x"), "");
}

TEST_F(JobStoreTest, ClaimsThatADigestDoesNotCatchAreChecked) {
  const std::string payload = protocol::EncodeJobRecord(Some());
  ASSERT_EQ(ErrorOf(WithPayload(payload)), "");
  EXPECT_NE(ErrorOf(WithPayload(Replaced(payload, "abc234", "../../"))).find("`id`"),
            std::string::npos);
  const std::string state = std::string("\xA5") + "state" + "\xA4";
  EXPECT_NE(ErrorOf(WithPayload(Replaced(payload, state + "done", state + "dome"))).find("`state`"),
            std::string::npos);
  EXPECT_NE(ErrorOf(WithPayload("")), "");
  EXPECT_NE(ErrorOf(WithPayload(std::string(100, '\x91'))), "");
  // An array of four billion items, and text of as many bytes.
  EXPECT_NE(ErrorOf(WithPayload("\xDD\xFF\xFF\xFF\xFF")), "");
  EXPECT_NE(ErrorOf(WithPayload("\xDB\xFF\xFF\xFF\xFF")), "");
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = payload;
    for (int flips = 0; flips < 3; ++flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    static_cast<void>(DecodeJobFile(WithPayload(damaged)));  // whatever it is, no crash
  }
}

TEST_F(JobStoreTest, RecordsThatContradictThemselvesAreRefused) {
  const auto refused = [](const JobRecord& record) { return ErrorOf(EncodeJobFile(record)); };
  JobRecord record = Some();
  record.result = {};
  EXPECT_NE(refused(record).find("result"), std::string::npos);
  record = Some();
  record.state = JobState::kRunning;
  EXPECT_NE(refused(record).find("result"), std::string::npos);
  record = Some();
  record.state = JobState::kFailed;
  EXPECT_NE(refused(record).find("error"), std::string::npos);
  record = Some();
  record.error = protocol::JobError{"io_error", "m", ""};
  EXPECT_NE(refused(record).find("error"), std::string::npos);
  record = Some();
  record.spec.build = protocol::BuildArgs();
  record.spec.build->out = "/o";
  EXPECT_NE(refused(record).find("spec"), std::string::npos);
  record = Some();
  record.spec = {};
  EXPECT_NE(refused(record).find("spec"), std::string::npos);
  record = Some();
  record.spec.verify->model = "a/relative/path";
  EXPECT_NE(refused(record).find("relative"), std::string::npos);
  record = Some();
  record.what = std::string(100'000, 'x');
  EXPECT_NE(refused(record).find("what"), std::string::npos);
  record = Some();
  record.checkpoint = std::string(protocol::kMaxCheckpointBytes + 1, 'x');
  EXPECT_NE(refused(record).find("checkpoint"), std::string::npos);
}

TEST_F(JobStoreTest, BadFilesAreSetAsideWithTheReasonAndNotTriedAgain) {
  JobStore store(folder());
  ASSERT_TRUE(store.Save(Some()));
  Write(folder() + "/bad111.job", "nonsense, and more of it than a head has");
  Write(folder() + "/torn22.job", EncodeJobFile(Some("torn22")).substr(0, 60));
  fs::copy_file(folder() + "/abc234.job", folder() + "/other3.job");
  fs::create_directory(folder() + "/folder.job");
  // What it leads to would do as a record.
  Write(dir_ / "elsewhere", EncodeJobFile(Some("linked")));
  fs::create_symlink(dir_ / "elsewhere", folder() + "/linked.job");
  fs::resize_file(folder() + "/bad111.job", 100);
  Write(folder() + "/huge44.job", "x");
  fs::resize_file(folder() + "/huge44.job", uint64_t{1} << 40);
  Write(folder() + "/abc234.job.tmp.99", "left by one that died");
  auto loaded = store.Load();
  ASSERT_TRUE(loaded.has_value());
  ASSERT_EQ(loaded->records.size(), 1u);
  EXPECT_EQ(loaded->warnings.size(), 6u);
  for (const char* name : {"bad111", "torn22", "other3", "folder", "linked", "huge44"}) {
    EXPECT_TRUE(fs::exists(fs::symlink_status(folder() + "/" + name + ".job.bad"))) << name;
    EXPECT_FALSE(fs::exists(fs::symlink_status(folder() + "/" + name + ".job"))) << name;
  }
  EXPECT_FALSE(fs::exists(folder() + "/abc234.job.tmp.99"));
  EXPECT_TRUE(store.Load()->warnings.empty());
}

TEST_F(JobStoreTest, OneOfALaterVersionIsLeftAlone) {
  JobRecord record = Some();
  record.version = protocol::kJobRecordVersion + 1;
  fs::create_directories(folder());
  Write(folder() + "/abc234.job", EncodeJobFile(record));
  auto loaded = JobStore(folder()).Load();
  ASSERT_TRUE(loaded.has_value());
  EXPECT_TRUE(loaded->records.empty());
  EXPECT_EQ(loaded->warnings.size(), 1u);
  EXPECT_TRUE(fs::exists(folder() + "/abc234.job"));
}

TEST_F(JobStoreTest, OfBadFilesABoundedNumberIsKept) {
  fs::create_directories(folder());
  for (int i = 0; i < 40; ++i) {
    Write(folder() + "/x" + std::to_string(10000 + i) + ".job.bad", "x");
  }
  ASSERT_TRUE(JobStore(folder()).Load().has_value());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 16);
}

TEST_F(JobStoreTest, AFolderThatCannotBeIsAnErrorAndTheFileBeforeStays) {
  fs::create_directories(dir_.path() + "/state");
  Write(folder(), "a file in the way");
  JobStore store(folder());
  EXPECT_FALSE(store.Load().has_value());
  EXPECT_FALSE(store.Save(Some()));
  fs::remove(folder());
  EXPECT_TRUE(store.Save(Some()));
  EXPECT_EQ(store.Load()->records.size(), 1u);
}

TEST_F(JobStoreTest, TheWriterWritesTheLastRecordBeforeItStops) {
  std::mutex mutex;
  std::vector<JobSaved> saved;
  {
    JobWriter writer(JobStore(folder()), [&](JobEvent event) {
      std::lock_guard lock(mutex);
      saved.push_back(std::get<JobSaved>(std::move(event)));
    });
    JobRecord record = Some();
    for (uint64_t change = 1; change <= 50; ++change) {
      record.done = change;
      writer.Save(record, change);
    }
    writer.Save(Some("gone22"), 1);
    writer.Remove("gone22");
    writer.Stop();
  }
  ASSERT_FALSE(saved.empty());
  auto loaded = JobStore(folder()).Load();
  ASSERT_EQ(loaded->records.size(), 1u);
  EXPECT_EQ(loaded->records[0].done, 50u);
  uint64_t last = 0;
  for (const JobSaved& one : saved) {
    EXPECT_TRUE(one.status);
    if (one.id == "abc234") last = one.change;
  }
  EXPECT_EQ(last, 50u);
}

// ---------------------------------------------------------------- runs

class Scripted : public JobKind {
 public:
  explicit Scripted(
      std::function<protocol::Result<protocol::JobResult>(JobContext& context)> script)
      : script_(std::move(script)) {}
  std::string_view name() const override { return "verify"; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec&) const override { return JobPlan(); }
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec&,
                                            JobContext& context) override {
    return script_(context);
  }

 private:
  std::function<protocol::Result<protocol::JobResult>(JobContext&)> script_;
};

class Inbox {
 public:
  void Put(JobEvent event) {
    {
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_all();
  }
  // Everything up to the end of a run.
  std::vector<JobEvent> UntilEnd() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [this] {
      return !events_.empty() && std::holds_alternative<JobEnded>(events_.back());
    });
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<JobEvent> events_;
};

TEST(JobRunner, TellsProgressCheckpointsAndTheEnd) {
  Inbox inbox;
  JobRunner runner([&inbox](JobEvent event) { inbox.Put(std::move(event)); });
  Scripted kind([](JobContext& context) {
    EXPECT_EQ(context.checkpoint(), "before");
    for (uint64_t i = 0; i < 1000; ++i) context.Report({"verify", i, 1000, "bytes"});
    context.Report({"other", 1, 2, "bytes"});
    context.SaveCheckpoint("so far", 7);
    context.SaveCheckpoint(std::string(protocol::kMaxCheckpointBytes + 1, 'x'), 8);
    return protocol::Result<protocol::JobResult>(protocol::JobResult());
  });
  auto run = runner.Start(kind, {}, "before");
  ASSERT_TRUE(run.has_value());
  const auto events = inbox.UntilEnd();
  runner.Join(*run);
  size_t progress = 0;
  size_t checkpoints = 0;
  std::string last_stage;
  for (const JobEvent& event : events) {
    if (const auto* one = std::get_if<JobProgressed>(&event)) {
      ++progress;
      last_stage = one->progress.stage;
    }
    if (const auto* one = std::get_if<JobCheckpointed>(&event)) {
      ++checkpoints;
      EXPECT_EQ(one->checkpoint, "so far");
      EXPECT_EQ(one->done, 7u);
    }
  }
  EXPECT_GE(progress, 2u);
  EXPECT_LT(progress, 1000u);  // most came too soon
  EXPECT_EQ(last_stage, "other");
  EXPECT_EQ(checkpoints, 1u);
  EXPECT_TRUE(std::get<JobEnded>(events.back()).result.has_value());
}

TEST(JobRunner, CancelIsSeenAndStopWaits) {
  Inbox inbox;
  JobRunner runner([&inbox](JobEvent event) { inbox.Put(std::move(event)); });
  Scripted kind([](JobContext& context) -> protocol::Result<protocol::JobResult> {
    while (!context.cancelled()) std::this_thread::yield();
    return protocol::Fail(protocol::ErrorCode::kCancelled, "cancelled");
  });
  auto first = runner.Start(kind, {}, {});
  runner.Cancel(*first);
  EXPECT_FALSE(std::get<JobEnded>(inbox.UntilEnd().back()).result.has_value());
  runner.Join(*first);
  ASSERT_TRUE(runner.Start(kind, {}, {}).has_value());
  runner.Stop();
  EXPECT_FALSE(std::get<JobEnded>(inbox.UntilEnd().back()).result.has_value());
}

TEST(JobRunner, AKindThatThrowsHasFailed) {
  Inbox inbox;
  JobRunner runner([&inbox](JobEvent event) { inbox.Put(std::move(event)); });
  Scripted kind([](JobContext&) -> protocol::Result<protocol::JobResult> {
    throw std::runtime_error("oh no");
  });
  ASSERT_TRUE(runner.Start(kind, {}, {}).has_value());
  const auto events = inbox.UntilEnd();
  const auto& result = std::get<JobEnded>(events.back()).result;
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, protocol::ErrorCode::kInternal);
  EXPECT_NE(result.error().message.find("oh no"), std::string::npos);
}

}  // namespace
}  // namespace mk::daemon
