// Whether another program took the place of the one that runs.

#include "daemon/program_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "temp_dir.h"

namespace mk::daemon {
namespace {

using namespace std::chrono_literals;

class ProgramFileTest : public ::testing::Test {
 protected:
  void SetUp() override { Write(path_, "old"); }
  void Write(const std::string& path, const std::string& text, mode_t mode = 0755) {
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
  }
  void Install(const std::string& text, mode_t mode = 0755) {
    Write(path_ + ".new", text, mode);
    ASSERT_EQ(rename((path_ + ".new").c_str(), path_.c_str()), 0);
  }
  // A look that is not too soon after the last one.
  bool Look(ProgramFile& file) { return file.Look(now_ += 10s); }

  TempDir dir_;
  std::string path_ = dir_ / "program";
  Clock::time_point now_ = Clock::now();
};

TEST_F(ProgramFileTest, TheSameFileIsNotReplaced) {
  ProgramFile file(path_);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Look(file));
}

TEST_F(ProgramFileTest, AnotherFileInItsPlaceIsNoticedWhenItHasSettled) {
  ProgramFile file(path_);
  EXPECT_FALSE(Look(file));
  Install("new");
  EXPECT_FALSE(Look(file));  // it may just be written
  EXPECT_TRUE(Look(file));
  EXPECT_TRUE(file.replaced());
  Install("newer");
  EXPECT_FALSE(Look(file));
  EXPECT_TRUE(Look(file));
}

TEST_F(ProgramFileTest, TheSameInodeWithOtherBytesIsAnotherFile) {
  ProgramFile file(path_);
  Write(path_, "longer");
  Look(file);
  EXPECT_TRUE(Look(file));
}

TEST_F(ProgramFileTest, TheSameSizeWithAnotherTimeIsAnotherFile) {
  ProgramFile file(path_);
  const timespec times[2] = {{1, 0}, {1, 5}};
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  Look(file);
  EXPECT_TRUE(Look(file));
}

TEST_F(ProgramFileTest, WhatIsGoneOrCannotRunIsNoReplacement) {
  ProgramFile file(path_);
  std::filesystem::remove(path_);
  Look(file);
  EXPECT_FALSE(Look(file));
  Install("half", 0);
  if (access(path_.c_str(), X_OK) == 0) GTEST_SKIP() << "this user may run anything";
  Look(file);
  EXPECT_FALSE(Look(file));
}

TEST_F(ProgramFileTest, ADirectoryIsNoReplacement) {
  ProgramFile file(path_);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  Look(file);
  EXPECT_FALSE(Look(file));
}

TEST_F(ProgramFileTest, ItComesBackToTheOldFile) {
  ProgramFile file(path_);
  ASSERT_EQ(link(path_.c_str(), (path_ + ".kept").c_str()), 0);
  Install("new");
  Look(file);
  EXPECT_TRUE(Look(file));
  ASSERT_EQ(rename((path_ + ".kept").c_str(), path_.c_str()), 0);
  EXPECT_FALSE(Look(file));
}

TEST_F(ProgramFileTest, ItDoesNotLookTooOften) {
  ProgramFile file(path_);
  file.Look(now_);
  Install("new");
  EXPECT_FALSE(file.Look(now_ + 1ms));
  EXPECT_FALSE(file.Look(now_ + 2ms));
  EXPECT_FALSE(file.Look(now_ + 5s));
  EXPECT_TRUE(file.Look(now_ + 10s));
}

TEST_F(ProgramFileTest, OneThatWasNeverThereTellsNothing) {
  ProgramFile file(dir_ / "nowhere");
  Write(dir_ / "nowhere", "now it is");
  Look(file);
  EXPECT_FALSE(Look(file));
}

TEST_F(ProgramFileTest, ThisProcessKnowsItsFile) {
  ProgramFile file = ProgramFile::OfThisProcess();
  EXPECT_EQ(std::filesystem::path(file.path()).filename(), "daemon_program_file_test");
  Look(file);
  EXPECT_FALSE(Look(file));
}

}  // namespace
}  // namespace mk::daemon
