#include "engine/base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "temp_directory.h"

namespace mk {
namespace {

using test::TempDirectory;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(AtomicFile, AppearsWholeOnCommit) {
  const TempDirectory directory;
  const std::string path = directory.Path("out");
  ASSERT_TRUE(WriteFileAtomically(path, "old").has_value());
  {
    auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Allocate(8).has_value());
    ASSERT_TRUE(file->WriteAt(4, Bytes("late")).has_value());
    ASSERT_TRUE(file->WriteAt(0, Bytes("soon")).has_value());
    EXPECT_EQ(ReadWholeFile(path, 100).value(), "old");
    EXPECT_EQ(directory.Files(), 2u);
    ASSERT_TRUE(file->Commit().has_value());
    EXPECT_EQ(ReadWholeFile(path, 100).value(), "soonlate");
    EXPECT_FALSE(file->Commit().has_value());
  }
  EXPECT_EQ(ReadWholeFile(path, 100).value(), "soonlate");
  EXPECT_EQ(directory.Files(), 1u);
}

TEST(AtomicFile, LeavesNothingWhenGivenUp) {
  const TempDirectory directory;
  {
    auto file = AtomicFile::Create(directory.Path("out"));
    ASSERT_TRUE(file.has_value());
    AtomicFile moved = std::move(*file);
    ASSERT_TRUE(moved.WriteAt(0, Bytes("x")).has_value());
    EXPECT_EQ(directory.Files(), 1u);
  }
  EXPECT_EQ(directory.Files(), 0u);
}

TEST(AtomicFile, DoesNotWriteThroughALinkAtTheTemporaryName) {
  const TempDirectory directory;
  const std::string path = directory.Path("out");
  const std::string victim = directory.Path("victim");
  std::ofstream(victim) << "untouched";
  const std::string temp = path + ".tmp." + std::to_string(::getpid());
  ASSERT_EQ(::symlink(victim.c_str(), temp.c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(path, "new").has_value());
  EXPECT_EQ(ReadWholeFile(victim, 100).value(), "untouched");
  EXPECT_EQ(ReadWholeFile(path, 100).value(), "new");
}

TEST(AtomicFile, KeepsTheModeAsked) {
  const TempDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.Path("secret"), "x", 0600).has_value());
  struct stat info {};
  ASSERT_EQ(::stat(directory.Path("secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(AtomicFile, ErrorsNameTheCause) {
  const TempDirectory directory;
  EXPECT_EQ(AtomicFile::Create(directory.Path("none/out")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(AtomicFile::Create("").error().code, ErrorCode::kInvalidArgument);
  auto file = AtomicFile::Create(directory.Path("out"));
  ASSERT_TRUE(file.has_value());
  const Status full = file->Allocate(uint64_t{1} << 60);
  EXPECT_FALSE(full.has_value());
  // A directory in the place of the file: the rename fails and the temporary file goes away.
  std::filesystem::create_directories(directory.Path("taken/inside"));
  auto blocked = WriteFileAtomically(directory.Path("taken"), "x");
  EXPECT_FALSE(blocked.has_value());
  EXPECT_TRUE(FreeSpaceFor(directory.Path("out")).value() > 0);
  EXPECT_FALSE(FreeSpaceFor(directory.Path("none/out")).has_value());
}

}  // namespace
}  // namespace mk
