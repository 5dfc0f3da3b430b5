// Limits of control groups, read from a tree of files like the kernel's.

#include "daemon/memory_limit.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

#include "temp_dir.h"

namespace mk::daemon {
namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
constexpr const char* kVersion2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
constexpr const char* kVersion1 =
    "31 23 0:28 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
    "32 23 0:29 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";

class CgroupTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(dir_ / path.substr(1));
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Group(const std::string& lines) { Write("/proc/self/cgroup", lines); }
  void Mounts(const std::string& lines) { Write("/proc/self/mountinfo", lines); }
  uint64_t Limit() { return CgroupMemoryLimit(dir_.path()); }

  TempDir dir_;
};

TEST_F(CgroupTest, WithoutGroupsThereIsNoLimit) {
  EXPECT_EQ(Limit(), kNone);
  Group("0::/a\n");
  EXPECT_EQ(Limit(), kNone);
  Mounts(kVersion2);
  EXPECT_EQ(Limit(), kNone);
  Write("/sys/fs/cgroup/a/memory.max", "max\n");
  EXPECT_EQ(Limit(), kNone);
}

TEST_F(CgroupTest, TheSmallestOfAllAncestorsCounts) {
  Group("0::/user.slice/app.slice/mk.service\n");
  Mounts(kVersion2);
  Write("/sys/fs/cgroup/user.slice/app.slice/mk.service/memory.max", "3000\n");
  EXPECT_EQ(Limit(), 3000U);
  Write("/sys/fs/cgroup/user.slice/memory.max", "2000\n");
  EXPECT_EQ(Limit(), 2000U);
  Write("/sys/fs/cgroup/user.slice/app.slice/memory.max", "1000\n");
  EXPECT_EQ(Limit(), 1000U);
  Write("/sys/fs/cgroup/memory.max", "500\n");  // of a container: the mount point itself
  EXPECT_EQ(Limit(), 500U);
}

TEST_F(CgroupTest, Version1HasItsOwnHierarchyAndName) {
  Group("4:memory:/box/7ed8\n1:cpu:/\n0::/\n");
  Mounts(kVersion1);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Limit(), 9223372036854771712U);
  Write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "4000\n");
  EXPECT_EQ(Limit(), 4000U);
  Write("/sys/fs/cgroup/memory/box/7ed8/memory.limit_in_bytes", "3000\n");
  EXPECT_EQ(Limit(), 3000U);
  Write("/sys/fs/cgroup/memory/box/7ed8/memory.max", "1\n");  // not its name there
  Write("/sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n");   // nor its hierarchy
  EXPECT_EQ(Limit(), 3000U);
}

TEST_F(CgroupTest, BothVersionsAtOnceGiveTheSmaller) {
  Group("4:memory,cpu:/one\n0::/two\n");
  Mounts(std::string(kVersion1) + "33 23 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/memory/one/memory.limit_in_bytes", "800\n");
  Write("/sys/fs/cgroup/unified/two/memory.max", "700\n");
  EXPECT_EQ(Limit(), 700U);
}

TEST_F(CgroupTest, AMountThatShowsAPartOfTheTree) {
  // A container without a namespace of its own: its group is named from the host's root.
  Group("0::/docker/abc/job\n");
  Mounts("30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/job/memory.max", "900\n");
  EXPECT_EQ(Limit(), 900U);
  // A group beside what is mounted.
  Group("0::/../sibling\n");
  Mounts("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/memory.max", "600\n");
  EXPECT_EQ(Limit(), 600U);
}

TEST_F(CgroupTest, MountPointsWithSpaces) {
  Group("0::/a\n");
  Mounts("30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
  Write("/my groups/a/memory.max", "1234\n");
  EXPECT_EQ(Limit(), 1234U);
}

TEST_F(CgroupTest, GarbageIsNoLimit) {
  Group("nonsense\n:\n0:\n\n0::/a\n");
  Mounts("1\n- - -\n\n30 23 0:26 /\n" + std::string(kVersion2));
  Write("/sys/fs/cgroup/a/memory.max", "-\n");
  EXPECT_EQ(Limit(), kNone);
}

TEST_F(CgroupTest, TheBudgetIsThreeQuarters) {
  EXPECT_GT(DefaultMemoryBudget(dir_.path()), uint64_t{1} << 26);  // of the machine
  Group("0::/a\n");
  Mounts(kVersion2);
  Write("/sys/fs/cgroup/a/memory.max", "400000\n");
  EXPECT_EQ(DefaultMemoryBudget(dir_.path()), 300000U);
}

}  // namespace
}  // namespace mk::daemon
