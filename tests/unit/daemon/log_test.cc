// The daemon's log file: lines, levels, rotation.

#include "daemon/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "protocol/log_path.h"
#include "temp_dir.h"

namespace mk::daemon {
namespace {

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { spdlog::shutdown(); }
  void SetUpFile(size_t max_bytes = 1 << 20) {
    LogOptions options;
    options.file = file_;
    options.max_bytes = max_bytes;
    ASSERT_TRUE(SetUpLog(options));
  }
  std::string Text(size_t number = 0) const {
    std::ostringstream text;
    text << std::ifstream(protocol::RotatedLog(file_, number)).rdbuf();
    return text.str();
  }

  TempDir dir_;
  const std::string file_ = dir_ / "microkimid.log";
};

TEST_F(LogTest, ALineHasTimePidAndLevel) {
  SetUpFile();
  spdlog::info("loaded {}", "/m.bin");
  spdlog::warn("the socket is gone");
  spdlog::debug("not at this level");
  const std::string head =
      R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d )" + std::to_string(getpid());
  EXPECT_TRUE(std::regex_match(Text(), std::regex(head + " info loaded /m\\.bin\n" + head +
                                                  " warning the socket is gone\n")))
      << Text();
}

TEST_F(LogTest, AnEventIsOneLineWhateverIsInIt) {
  SetUpFile();
  spdlog::info("{}", "a\nb\tc\x1b[2J\x7f Größe {}");
  const std::string text = Text();
  EXPECT_TRUE(text.ends_with(" info a\\nb\\tc\\x1b[2J\\x7f Größe {}\n")) << text;
}

TEST_F(LogTest, IsRotatedAtItsSizeAndNoMoreThanThreeAreKept) {
  SetUpFile(4096);
  for (int i = 0; i < 400; ++i) spdlog::info("event {:>80}", i);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_LE(entry.file_size(), 4096U) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, protocol::kKeptLogs + 1);
  // They follow each other, up to the last event.
  const std::string all = Text(2) + Text(1) + Text(0);
  int last = -1;
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) {
    const int number = std::stoi(line.substr(line.rfind(' ')));
    if (last >= 0) {
      EXPECT_EQ(number, last + 1);
    }
    last = number;
  }
  EXPECT_EQ(last, 399);
}

TEST_F(LogTest, AFileThatCannotBeMadeIsAnError) {
  LogOptions options;
  options.file = "/proc/no/such/folder/log";
  const auto status = SetUpLog(options);
  ASSERT_FALSE(status);
  EXPECT_FALSE(status.error().hint.empty());
}

}  // namespace
}  // namespace mk::daemon
