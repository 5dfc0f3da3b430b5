// Reading the daemon's log: lines, times, and files that are rotated while they are read.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "client/log_line.h"
#include "client/log_reader.h"
#include "client/log_source.h"
#include "protocol/log_path.h"
#include "tests/unit/client/fake_daemon.h"

namespace mk::client {
namespace {

using testing::TempFolder;

constexpr int64_t kHour = 3600'000;

TEST(LogLine, HasTimePidLevelAndMessage) {
  const LogLine line =
      ParseLogLine("2026-11-30T13:40:11.123+01:00 4711 warning the  socket is gone", {});
  EXPECT_EQ(line.time, "2026-11-30T13:40:11.123+01:00");
  EXPECT_EQ(line.time_ms, 1796042411123);  // date -d 2026-11-30T12:40:11Z +%s
  EXPECT_EQ(line.pid, 4711U);
  EXPECT_EQ(line.level, LogLevel::kWarn);
  EXPECT_EQ(line.message, "the  socket is gone");
}

TEST(LogLine, LinesWithoutAHeadGoOnWithTheOneBefore) {
  const LogLine before = ParseLogLine("2026-11-30T13:40:11.123+00:00 7 error broken", {});
  for (const char* text :
       {"", "plain", "2026-11-30T13:40:11.123+00:00 7 loud x",
        "2026-11-30T13:40:11.123+00:00 x info", "2026-13-30T13:40:11.123+00:00 7 info x",
        "2026-11-30T13:40:11.123+00:00 7", "2026-11-30T13:40:11.123+00:0 7 info x",
        "at 0x7f 12 info x"}) {
    const LogLine line = ParseLogLine(text, before);
    EXPECT_EQ(line.message, text);
    EXPECT_EQ(line.time, before.time) << text;
    EXPECT_EQ(line.level, LogLevel::kError) << text;
  }
  EXPECT_EQ(ParseLogLine("first", {}).time, "");
}

TEST(LogLine, JsonHasEveryPart) {
  const LogLine line = ParseLogLine("2026-11-30T13:40:11.123+00:00 7 critical out of \"it\"", {});
  EXPECT_EQ(LogLineToJson(line).dump(),
            R"({"time":"2026-11-30T13:40:11.123+00:00","pid":7,"level":"error",)"
            R"("message":"out of \"it\""})");
}

TEST(Since, TakesDurationsAndTimes) {
  const char* before = std::getenv("TZ");
  const std::string old = before != nullptr ? before : "";
  ::setenv("TZ", "XXX-2", 1);  // two hours east of Greenwich
  ::tzset();
  const int64_t now = 1796042411123;  // 14:40:11 there
  EXPECT_EQ(ParseSince("10m", now).value(), now - kHour / 6);
  EXPECT_EQ(ParseSince("1.5h", now).value(), now - kHour * 3 / 2);
  EXPECT_EQ(ParseSince("14:40", now).value(), now - 11'123);
  EXPECT_EQ(ParseSince("14:40:11", now).value(), now - 123);
  EXPECT_EQ(ParseSince("2026-11-30 14:40:11", now).value(), now - 123);
  EXPECT_EQ(ParseSince("2026-11-30T14:40", now).value(), now - 11'123);
  EXPECT_EQ(ParseSince("2026-11-30T12:40:11Z", now).value(), now - 123);
  EXPECT_EQ(ParseSince("2026-11-30T12:40:11.100+00:00", now).value(), now - 23);
  EXPECT_EQ(ParseSince("2026-11-30T10:10:11-02:30", now).value(), now - 123);
  EXPECT_EQ(ParseSince("2026-11-30", now).value(), now - 14 * kHour - 2411'123);
  for (const char* wrong : {"", "yesterday", "2026-11", "2026-11-30 25:00", "2026-11-30 1:00",
                            "14:60", "2026-11-30T12:40Zx", "-5m", "10 parsecs"}) {
    EXPECT_FALSE(ParseSince(wrong, now)) << wrong;
  }
  old.empty() ? ::unsetenv("TZ") : ::setenv("TZ", old.c_str(), 1);
  ::tzset();
}

// A log that is written and rotated as the daemon does it.
class RotatedLog : public ::testing::Test {
 protected:
  void Append(const std::string& text, size_t number = 0) {
    std::ofstream(protocol::RotatedLog(file_, number), std::ios::app) << text;
  }
  void Rotate() {
    std::filesystem::remove(protocol::RotatedLog(file_, 2));
    for (const size_t number : {1U, 0U}) {
      std::error_code none;
      std::filesystem::rename(protocol::RotatedLog(file_, number),
                              protocol::RotatedLog(file_, number + 1), none);
    }
  }
  std::string Read() {
    std::string lines;
    const auto read = reader_.Read([&](std::string_view line) { (lines += line) += '|'; });
    EXPECT_TRUE(read) << read.error().message;
    return lines;
  }

  const TempFolder folder_;
  const std::string file_ = folder_ / "d.log";
  LogReader reader_{file_};
};

TEST_F(RotatedLog, NamesAreThoseOfTheDaemon) {
  EXPECT_EQ(protocol::RotatedLog("/a/microkimid.log", 0), "/a/microkimid.log");
  EXPECT_EQ(protocol::RotatedLog("/a/microkimid.log", 2), "/a/microkimid.2.log");
  EXPECT_EQ(protocol::RotatedLog("/a.b/log", 1), "/a.b/log.1");
}

TEST_F(RotatedLog, AllFilesAreReadOldestFirst) {
  Append("one\ntwo\n", 2);
  Append("three\n", 1);
  Append("four\n");
  EXPECT_EQ(Read(), "one|two|three|four|");
  EXPECT_EQ(Read(), "");
}

TEST_F(RotatedLog, WhatIsMissingIsNoError) {
  EXPECT_EQ(Read(), "");
  EXPECT_FALSE(reader_.found());
  Append("later\n");
  EXPECT_EQ(Read(), "later|");
  EXPECT_TRUE(reader_.found());
}

TEST_F(RotatedLog, IsFollowedThroughRotations) {
  Append("a\n");
  EXPECT_EQ(Read(), "a|");
  Append("b\n");
  Rotate();
  Append("c\n");
  EXPECT_EQ(Read(), "b|c|");
  // Twice between two looks.
  Append("d\n");
  Rotate();
  Append("e\n");
  Rotate();
  Append("f\n");
  EXPECT_EQ(Read(), "d|e|f|");
  // Rotated, and nothing new written yet.
  Rotate();
  EXPECT_EQ(Read(), "");
  Append("g\n");
  EXPECT_EQ(Read(), "g|");
}

TEST_F(RotatedLog, WhatWasRotatedAwayIsGoneButTheRestIsRead) {
  Append("a\n");
  EXPECT_EQ(Read(), "a|");
  for (const char* text : {"b\n", "c\n", "d\n", "e\n"}) {
    Rotate();
    Append(text);
  }
  EXPECT_EQ(Read(), "c|d|e|");
}

TEST_F(RotatedLog, ALineIsWholeOrWaits) {
  Append("half");
  EXPECT_EQ(Read(), "");
  Append(" a line\nnext");
  EXPECT_EQ(Read(), "half a line|");
  std::string rest;
  reader_.Finish([&](std::string_view line) { rest = line; });
  EXPECT_EQ(rest, "next");
  // The end of a file that was rotated will not come any more.
  Append("torn");
  EXPECT_EQ(Read(), "");
  Rotate();
  Append("new\n");
  EXPECT_EQ(Read(), "torn|new|");
}

TEST_F(RotatedLog, AFileThatWasEmptiedIsReadFromItsStart) {
  Append("a long first line\n");
  EXPECT_EQ(Read(), "a long first line|");
  std::ofstream(file_, std::ios::trunc) << "b\n";
  EXPECT_EQ(Read(), "b|");
}

TEST_F(RotatedLog, EndlessLinesAreCut) {
  Append(std::string(3u << 20, 'x') + "\nend\n");
  size_t longest = 0;
  size_t bytes = 0;
  ASSERT_TRUE(reader_.Read([&](std::string_view line) {
    longest = std::max(longest, line.size());
    bytes += line.size();
  }));
  EXPECT_EQ(bytes, (3u << 20) + 3);
  EXPECT_LE(longest, (1u << 20) + 65536);
}

TEST_F(RotatedLog, WhatIsNoFileIsAnError) {
  std::filesystem::create_directory(file_);
  const auto read = reader_.Read([](std::string_view) {});
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find(file_), std::string::npos);
}

TEST(LogPath, EverySocketHasItsOwn) {
  ::setenv("XDG_STATE_HOME", "/state", 1);
  ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(protocol::LogFileOf("/run/user/7/microkimi/microkimid.sock").value(),
            "/state/microkimi/microkimid.log");
  const std::string one = protocol::LogFileOf("/tmp/one.sock").value();
  const std::string two = protocol::LogFileOf("/tmp/two.sock").value();
  EXPECT_NE(one, two);
  // FNV-1a of "a" is af63dc4c8601ec8c.
  EXPECT_EQ(protocol::LogFileOf("a").value(), "/state/microkimi/microkimid-af63dc4c8601ec8c.log");
  // That somebody names the usual one changes nothing.
  ::setenv("MICROKIMI_SOCKET", "/tmp/one.sock", 1);
  EXPECT_EQ(protocol::LogFileOf("/tmp/one.sock").value(), one);
  ::unsetenv("MICROKIMI_SOCKET");
}

TEST(LogSource, TellsTheCommandOfTheJournal) {
  EXPECT_EQ(JournalCommand("", {"50", false, "", ""}),
            "journalctl --user -u microkimid.service -n 50");
  EXPECT_EQ(
      JournalCommand("mk@a b.service", {"all", true, "2026-11-30 14:05", "warning"}),
      "journalctl --user -u 'mk@a b.service' -n all -f --since '2026-11-30 14:05' -p warning");
  EXPECT_EQ(JournalCommand("u", {"all", false, "10m", ""}),
            "journalctl --user -u u -n all --since -10m");
}

}  // namespace
}  // namespace mk::client
