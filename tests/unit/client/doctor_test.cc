// What mk doctor makes of folders, memory and locks.

#include "client/doctor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>

#include "tests/unit/client/fake_daemon.h"

namespace mk::client {
namespace {

using testing::TempFolder;

TEST(DoctorFolder, OneOfOursIsFine) {
  const TempFolder folder;
  ASSERT_EQ(::chmod((folder / "").c_str(), 0700), 0);
  const Finding finding = CheckFolder("state", folder / "", false);
  EXPECT_EQ(finding.health, Health::kOk) << finding.message;
  EXPECT_NE(finding.message.find("0700"), std::string::npos) << finding.message;
}

TEST(DoctorFolder, OneThatOthersMayChangeIsAWarningWithACommand) {
  const TempFolder folder;
  const std::string open = folder / "open";
  ASSERT_EQ(::mkdir(open.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(open.c_str(), 0777), 0);
  const Finding finding = CheckFolder("state", open, true);
  EXPECT_EQ(finding.health, Health::kWarn);
  EXPECT_EQ(finding.remedy, "chmod go-w " + open);
}

TEST(DoctorFolder, OneThatIsMissingIsMadeLater) {
  const TempFolder folder;
  const std::string missing = folder / "a/b/c";
  const Finding finding = CheckFolder("state", missing, false);
  EXPECT_EQ(finding.health, Health::kOk) << finding.message;
  EXPECT_NE(::access(missing.c_str(), F_OK), 0);
}

TEST(DoctorFolder, AFileInItsPlaceFails) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(CheckFolder("state", folder / "file", true).health, Health::kFail);
  EXPECT_EQ(CheckFolder("state", folder / "file/below", true).health, Health::kFail);
}

TEST(DoctorMemory, ShortMemoryIsAWarning) {
  const std::string plenty = "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n";
  EXPECT_EQ(CheckMemory(plenty, UINT64_MAX).health, Health::kOk);
  const Finding tight = CheckMemory(plenty, uint64_t{100} << 20);
  EXPECT_EQ(tight.health, Health::kWarn);
  EXPECT_NE(tight.remedy.find("memory.max"), std::string::npos);
  const Finding used = CheckMemory("MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n", UINT64_MAX);
  EXPECT_EQ(used.health, Health::kWarn);
  EXPECT_NE(used.remedy.find("unload"), std::string::npos);
}

TEST(DoctorLock, TheHolderIsTheOneOfThatVeryFile) {
  const std::string locks =
      "1: POSIX  ADVISORY  WRITE 11 08:01:77 0 EOF\n"
      "2: FLOCK  ADVISORY  WRITE 12 08:01:77 0 EOF\n"
      "2: -> FLOCK  ADVISORY  WRITE 13 08:01:78 0 EOF\n"
      "3: FLOCK  ADVISORY  WRITE 14 08:02:79 0 EOF\n";
  EXPECT_EQ(LockHolder(locks, makedev(8, 1), 77), 12);
  EXPECT_EQ(LockHolder(locks, makedev(8, 1), 78), 0);
  EXPECT_EQ(LockHolder(locks, makedev(8, 1), 79), 0);
  EXPECT_EQ(LockHolder(locks, makedev(8, 2), 79), 14);
  EXPECT_EQ(LockHolder("", makedev(8, 1), 77), 0);
}

}  // namespace
}  // namespace mk::client
