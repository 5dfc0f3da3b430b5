// When the watchdog lets the daemon report, and what it makes of services' variables.

#include "daemon/watchdog.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "daemon/notify.h"

namespace mk::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class WatchdogTest : public testing::Test {
 protected:
  Watchdog Make(seconds limit) {
    return {limit, {[this] { return beat_; }, [this] { Wake(); }}};
  }
  // An engine that lives answers.
  void Wake() {
    ++woken_;
    if (alive_) ++beat_;
  }

  uint64_t beat_ = 5;
  bool alive_ = true;
  int woken_ = 0;
  const Clock::time_point start_ = Clock::now();
};

TEST_F(WatchdogTest, ReportsFourTimesInTheTimeThatOneIsDue) {
  Watchdog watchdog = Make(seconds(8));
  EXPECT_FALSE(watchdog.Due(start_));  // nobody has answered yet
  int reports = 0;
  for (int ms = 0; ms <= 8000; ms += 100) reports += watchdog.Due(start_ + milliseconds(ms));
  EXPECT_EQ(reports, 4);
  EXPECT_EQ(woken_, 5);
  EXPECT_EQ(watchdog.silence(start_ + seconds(8)), Clock::duration::zero());
}

TEST_F(WatchdogTest, AnEngineThatDoesNotAnswerIsNotVouchedFor) {
  Watchdog watchdog = Make(seconds(8));
  watchdog.Due(start_);
  EXPECT_TRUE(watchdog.Due(start_ + seconds(2)));
  alive_ = false;
  EXPECT_TRUE(watchdog.Due(start_ + seconds(4)));  // the answer to the last question
  EXPECT_FALSE(watchdog.Due(start_ + seconds(6)));
  EXPECT_EQ(watchdog.silence(start_ + seconds(6)), seconds(2));
  EXPECT_FALSE(watchdog.Due(start_ + seconds(8)));
  EXPECT_EQ(watchdog.silence(start_ + seconds(9)), seconds(5));
  alive_ = true;
  EXPECT_FALSE(watchdog.Due(start_ + seconds(10)));
  EXPECT_TRUE(watchdog.Due(start_ + seconds(12)));
  EXPECT_EQ(watchdog.silence(start_ + seconds(12)), Clock::duration::zero());
}

TEST_F(WatchdogTest, WorkThatGoesOnIsAnAnswer) {
  Watchdog watchdog = Make(seconds(8));
  watchdog.Due(start_);
  alive_ = false;  // busy with a long step: it sees no question
  for (int i = 1; i < 10; ++i) {
    ++beat_;
    EXPECT_TRUE(watchdog.Due(start_ + seconds(2 * i)));
  }
}

TEST_F(WatchdogTest, WithoutALimitNothingIsAsked) {
  Watchdog watchdog = Make(seconds(0));
  EXPECT_FALSE(watchdog.next());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(watchdog.Due(start_ + seconds(i)));
  EXPECT_EQ(woken_, 0);
}

TEST(StartedBySystemd, BelievesTheVariablesOfThisProcessOnly) {
  unsetenv("NOTIFY_SOCKET");
  unsetenv("SYSTEMD_EXEC_PID");
  EXPECT_FALSE(StartedBySystemd());
  setenv("NOTIFY_SOCKET", "/nowhere/notify", 1);
  EXPECT_TRUE(StartedBySystemd());  // older than version 248
  setenv("SYSTEMD_EXEC_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_TRUE(StartedBySystemd());
  EXPECT_NE(getenv("NOTIFY_SOCKET"), nullptr);
  setenv("SYSTEMD_EXEC_PID", "1", 1);
  EXPECT_FALSE(StartedBySystemd());
  EXPECT_EQ(getenv("NOTIFY_SOCKET"), nullptr);
}

TEST(WatchdogTime, IsOfThisProcessOnly) {
  unsetenv("WATCHDOG_PID");
  setenv("WATCHDOG_USEC", "60000000", 1);
  EXPECT_EQ(WatchdogTime(), seconds(60));
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(WatchdogTime(), seconds(0));
  unsetenv("WATCHDOG_PID");
  unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(WatchdogTime(), seconds(0));
}

}  // namespace
}  // namespace mk::daemon
