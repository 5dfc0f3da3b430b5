#include "engine/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "temp_directory.h"

namespace mk {
namespace {

using test::TempDirectory;

void Put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TEST(File, ReadsExactlyWhatIsThere) {
  const TempDirectory directory;
  const std::string path = directory.Path("a");
  Put(path, std::string("one\0two", 7));
  EXPECT_EQ(ReadWholeFile(path, 7).value(), std::string("one\0two", 7));
  const auto large = ReadWholeFile(path, 6);
  ASSERT_FALSE(large.has_value());
  EXPECT_EQ(large.error().code, ErrorCode::kInvalidArgument);
  Put(path, "");
  EXPECT_EQ(ReadWholeFile(path, 0).value(), "");
}

TEST(File, ReadingPastTheEndIsCorruptAndNamesThePlace) {
  const TempDirectory directory;
  const std::string path = directory.Path("a");
  Put(path, "0123456789");
  auto file = OpenForReading(path);
  ASSERT_TRUE(file.has_value());
  std::string buffer(6, ' ');
  const auto bytes = std::as_writable_bytes(std::span(buffer));
  ASSERT_TRUE(ReadAt(file->fd.get(), 4, bytes, path).has_value());
  EXPECT_EQ(buffer, "456789");
  const Status status = ReadAt(file->fd.get(), 5, bytes, path);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(status.error().message.find(path + " ends at byte 10, 1 bytes short"),
            std::string::npos);
}

TEST(File, OnlyRegularFilesOpen) {
  const TempDirectory directory;
  EXPECT_EQ(OpenForReading(directory.Path("absent")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(OpenForReading(directory.Path("")).error().code, ErrorCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(directory.Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(OpenForReading(directory.Path("pipe")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(OpenForReading("/dev/null").error().code, ErrorCode::kInvalidArgument);
}

TEST(File, IdentityFollowsTheContent) {
  const TempDirectory directory;
  const std::string path = directory.Path("a");
  Put(path, "abc");
  auto file = OpenForReading(path);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->identity.size, 3u);
  EXPECT_EQ(IdentityOf(file->fd.get(), path).value(), file->identity);
  ASSERT_EQ(::truncate(path.c_str(), 2), 0);
  EXPECT_NE(IdentityOf(file->fd.get(), path).value(), file->identity);
}

TEST(File, WritingAtAnOffset) {
  const TempDirectory directory;
  const std::string path = directory.Path("a");
  Put(path, "aaaa");
  const UniqueFd fd(::open(path.c_str(), O_WRONLY));
  const std::string text = "bc";
  ASSERT_TRUE(WriteAt(fd.get(), 3, std::as_bytes(std::span(text)), path).has_value());
  EXPECT_EQ(ReadWholeFile(path, 100).value(), "aaabc");
  const Status refused = WriteAt(-1, 0, std::as_bytes(std::span(text)), path);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
}

TEST(File, SystemErrorsSayHowToMendThem) {
  EXPECT_EQ(SystemError(EACCES, "open", "x").code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(SystemError(ENOSPC, "write", "x").code, ErrorCode::kIo);
  EXPECT_NE(SystemError(ENOSPC, "write", "x").hint.find("disk"), std::string::npos);
  EXPECT_EQ(SystemError(ENOENT, "open", "x").message, "cannot open x: No such file or directory");
}

TEST(File, CanonicalPathFollowsLinks) {
  const TempDirectory directory;
  Put(directory.Path("real"), "x");
  ASSERT_EQ(::symlink("real", directory.Path("link").c_str()), 0);
  EXPECT_EQ(CanonicalPath(directory.Path("./link")), CanonicalPath(directory.Path("real")));
  EXPECT_EQ(CanonicalPath("/no/such/file"), "/no/such/file");
}

TEST(UniqueFd, ClosesOnceAndMoves) {
  int raw = ::dup(0);
  ASSERT_GE(raw, 0);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    EXPECT_EQ(second.get(), raw);
    EXPECT_NE(::fcntl(raw, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
  raw = ::dup(0);
  UniqueFd kept(raw);
  EXPECT_EQ(kept.Release(), raw);
  EXPECT_FALSE(static_cast<bool>(kept));
  EXPECT_EQ(::close(raw), 0);
}

}  // namespace
}  // namespace mk
