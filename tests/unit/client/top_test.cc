// What `mk top` shows: text made safe, columns, rates and percentiles of readings.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "client/printable.h"
#include "client/table.h"
#include "client/top_text.h"
#include "client/top_view.h"

namespace mk::client {
namespace {

using std::chrono::seconds;

TEST(Printable, ControlCharactersAreSpelled) {
  EXPECT_EQ(Printable("plain Größe 漢字"), "plain Größe 漢字");
  EXPECT_EQ(Printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(Printable("\x1b[2J\x07\x7f"), "\\x1b[2J\\x07\\x7f");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "2J"),
            "\\x9b2J");                               // CSI as one character
  EXPECT_EQ(Printable("\xE2\x80\xAE"), "\\u{202e}");  // turns the line around
  EXPECT_EQ(Printable("\xE2\x81\xA6\xE2\x80\xA8"), "\\u{2066}\\u{2028}");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("bad\xFF\xC3"), "bad\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Printable, NoByteBelowASpaceIsLeft) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second)};
      for (const char c : Printable(text)) {
        ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) << first << " " << second;
      }
    }
  }
}

TEST(Printable, WidthIsThatOfTheTerminal) {
  EXPECT_EQ(DisplayWidth("abc"), 3U);
  EXPECT_EQ(DisplayWidth("äöü"), 3U);
  EXPECT_EQ(DisplayWidth("漢字"), 4U);
  EXPECT_EQ(DisplayWidth("e\xCC\x81"), 1U);  // with a combining accent
}

TEST(Printable, FittedTextHasItsWidth) {
  EXPECT_EQ(Fitted("ab", 4), "ab  ");
  EXPECT_EQ(Fitted("abcd", 4), "abcd");
  EXPECT_EQ(Fitted("abcde", 4), "abc…");
  EXPECT_EQ(Fitted("abcde", 4, Cut::kStart), "…cde");
  EXPECT_EQ(Fitted("漢字漢字", 4), "漢… ");  // half a character is none
  EXPECT_EQ(Fitted("漢字漢字", 4, Cut::kStart), "…字 ");
  EXPECT_EQ(Fitted("abc", 1), "…");
  EXPECT_EQ(Fitted("abc", 0), "");
  for (const char* text : {"", "a", "漢字漢字漢字", "e\xCC\x81tat", "long enough to be cut"}) {
    for (size_t width = 0; width < 24; ++width) {
      EXPECT_EQ(DisplayWidth(Fitted(text, width)), width) << text;
      EXPECT_EQ(DisplayWidth(Fitted(text, width, Cut::kStart)), width) << text;
    }
  }
}

TEST(Table, CellsStandInTheirColumns) {
  const Painter plain(false);
  EXPECT_EQ(TableRow(plain, 0).Left("a", 3).Right("7", 4).Rest("the rest\n").Take(),
            "a       7  the rest\\n");
  EXPECT_EQ(TableRow(plain, 0).Left("too long", 4).Rest("x").Take(), "too…  x");
  // A row never gets wider than it may, wherever the edge falls.
  for (size_t columns = 1; columns < 40; ++columns) {
    const std::string row = TableRow(plain, columns)
                                .Left("left", 6)
                                .Right("right", 8)
                                .Left("more", 6)
                                .Rest("/a/long/path/model.bin", Cut::kStart)
                                .Take();
    EXPECT_LE(DisplayWidth(row), columns) << row;
  }
}

TEST(Table, ColoursAreTheOnlySequencesAndOnlyWhenWanted) {
  EXPECT_EQ(TableRow(Painter(true), 0).Left("\x1b[31mx", 10, Color::kRed).Take(),
            "\x1b[31m\\x1b[31mx \x1b[0m");
  EXPECT_EQ(Painter(false)(Color::kRed, "x"), "x");
}

// ---------------------------------------------------------------- readings

protocol::MetricFamily Counter(const std::string& name, double value) {
  return {name, "counter", "", "", {{{}, value, 0, {}}}};
}

// A histogram with one series per list of buckets.
protocol::MetricFamily Times(const std::string& name,
                             const std::vector<std::vector<protocol::MetricBucket>>& series) {
  protocol::MetricFamily family{name, "histogram", "seconds", "", {}};
  for (const auto& buckets : series) family.samples.push_back({{}, 0, 0, buckets});
  return family;
}

TEST(MetricWindow, SumsOverLabelsAndTakesDifferences) {
  const MetricReading before({Times("t", {{{0.1, 0.2, 5}}, {{0.1, 0.2, 1}, {0.4, 0.5, 7}}})});
  const MetricReading after(
      {Times("t", {{{0.1, 0.2, 5}}, {{0.1, 0.2, 11}, {0.4, 0.5, 7}, {0.8, std::nullopt, 90}}})});
  const LatencySummary gained = Summarise(before, after, "t");
  EXPECT_EQ(gained.count, 100U);       // 10 more between 0.1 and 0.2, 90 beyond 0.8
  EXPECT_NEAR(gained.p50, 0.8, 1e-9);  // without an upper bound: the lower one
  const LatencySummary all = Summarise(MetricReading(), before, "t");
  EXPECT_EQ(all.count, 13U);
  EXPECT_NEAR(all.p50, 0.4 + 0.1 * 0.5 / 7, 1e-9);  // rank 6.5: half a value into the second
  EXPECT_EQ(Summarise(before, before, "t").count, 0U);
  EXPECT_EQ(Summarise(before, after, "no such").count, 0U);
  EXPECT_EQ(after.Value("no such"), 0);
}

protocol::StatusDone Status(uint64_t pid, uint64_t generated) {
  protocol::StatusDone status;
  status.build_id = "1.0+abc";
  status.pid = pid;
  status.uptime_ms = 61'000;
  status.socket = "/run/s";
  status.threads = 2;
  status.max_batch = 8;
  status.connections = 3;
  status.memory = {{"budget", 1u << 30},
                   {"used", 3u << 28},
                   {"models", 1u << 29},
                   {"sequences", 1u << 28},
                   {"resident", 7u << 20}};
  status.counters = {{"generated_tokens", generated}, {"prefill_tokens", 11}};
  protocol::RequestStatus request;
  request.client = "mk 7";
  request.id = 2;
  request.op = "run";
  request.model = "/m.bin";
  request.phase = "decode";
  request.prompt_done = 5;
  request.prompt_total = 5;
  request.generated = generated;
  request.tokens_per_second = 1.5;
  request.age_ms = 9000;
  status.requests = {request};
  return status;
}

DaemonPicture Picture(Deadline at, uint64_t pid, uint64_t generated, double cpu = 0) {
  return {
      Status(pid, generated),
      {Counter("generated_tokens", static_cast<double>(generated)), Counter("prefill_tokens", 11),
       Counter("process_cpu_seconds", cpu), Counter("expert_reads", 30),
       Counter("expert_reads_saved", 10), Times("step_seconds", {{{0.01, 0.02, generated}}})},
      at};
}

TEST(TopHistory, OneReadingHasAveragesOnly) {
  const TopView view = TopHistory().Take(Picture(Clock::now(), 1, 100));
  EXPECT_FALSE(view.rates.has_value());
  EXPECT_EQ(view.request_rates, std::vector<double>{1.5});
  EXPECT_EQ(view.window_s, 0);
  EXPECT_EQ(view.step.count, 100U);
}

TEST(TopHistory, RatesAreThoseOfTheLastSeconds) {
  const Deadline start = Clock::now();
  TopHistory history;
  history.Take(Picture(start, 1, 100, 5));
  const TopView second = history.Take(Picture(start + seconds(2), 1, 150, 8));
  ASSERT_TRUE(second.rates.has_value());
  EXPECT_DOUBLE_EQ(second.rates->generated_per_s, 25);
  EXPECT_DOUBLE_EQ(second.rates->cpu_share, 1.5);
  EXPECT_DOUBLE_EQ(second.rates->prefill_per_s, 0);
  EXPECT_EQ(second.request_rates, std::vector<double>{25});
  EXPECT_EQ(second.step.count, 50U);
  // The burst is over; after three seconds it no longer counts.
  history.Take(Picture(start + seconds(4), 1, 150, 8));
  const TopView last = history.Take(Picture(start + seconds(6), 1, 152, 8));
  EXPECT_DOUBLE_EQ(last.rates->generated_per_s, 1);
}

TEST(TopHistory, PercentilesAreThoseOfTheLastMinute) {
  const Deadline start = Clock::now();
  TopHistory history;
  for (int second = 0; second <= 200; ++second) {
    const TopView view =
        history.Take(Picture(start + seconds(second), 1, 1000 + static_cast<uint64_t>(second)));
    const auto expected = second == 0 ? 1000U : static_cast<uint64_t>(std::min(second, 60));
    ASSERT_EQ(view.step.count, expected) << second;
    ASSERT_EQ(view.window_s, std::min(second, 60)) << second;
  }
}

TEST(TopHistory, AnotherDaemonStartsAnew) {
  const Deadline start = Clock::now();
  TopHistory history;
  history.Take(Picture(start, 1, 1000));
  const TopView view = history.Take(Picture(start + seconds(1), 2, 10));
  EXPECT_FALSE(view.rates.has_value());
  EXPECT_EQ(view.step.count, 10U);
}

TEST(TopHistory, JsonHasTheRatesBesideTheStatus) {
  TopHistory history;
  const Deadline start = Clock::now();
  EXPECT_TRUE(TopJson(history.Take(Picture(start, 1, 100)), "now")["rates"].is_null());
  const Json json = TopJson(history.Take(Picture(start + seconds(1), 1, 130)), "now");
  EXPECT_EQ(json["time"], "now");
  EXPECT_EQ(json["rates"]["generated_tokens_per_s"], 30);
  EXPECT_EQ(json["status"]["requests"][0]["tokens_per_s_now"], 30);
  EXPECT_EQ(json["status"]["requests"][0]["client"], "mk 7");
  EXPECT_EQ(json["latency"]["step"]["count"], 30);
  EXPECT_NEAR(json["latency"]["step"]["p50_ms"].get<double>(), 15, 0.01);
}

// ---------------------------------------------------------------- text

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TopView SomeView() {
  TopHistory history;
  const Deadline start = Clock::now();
  history.Take(Picture(start, 1, 100));
  return history.Take(Picture(start + seconds(1), 1, 130, 1));
}

void AddModel(protocol::StatusDone& status, const std::string& path) {
  protocol::ModelStatus model;
  model.path = path;
  model.architecture = "k3";
  model.state = "ready";
  model.memory_bytes = 5u << 20;
  model.file_bytes = 9u << 20;
  model.users = 1;
  model.precisions = {"exact", "q8"};
  status.models.push_back(model);
}

TEST(TopText, TellsWhatTheDaemonDoes) {
  TopView view = SomeView();
  AddModel(view.status, "/m.bin");
  const std::string text = Joined(TopText(view, {}));
  for (const char* part :
       {"microkimid 1.0+abc", "pid 1, up 1 min 1 s", "cpu 100 %", "resident 7.0 MiB", "/run/s",
        "[############======------]", "768 MiB of 1.0 GiB: models 512 MiB, sequences 256 MiB",
        "30.0/s generated", "of the last 1 s", "15 ms", "30 times", "exact,q8", "MODELS  1",
        "REQUESTS  1 running, 0 waiting", "5/5"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  // The model's row names its holder, the request's row its rate.
  EXPECT_NE(text.find("1  mk 7                /m.bin"), std::string::npos) << text;
  EXPECT_NE(text.find("130     30.0         9 s"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(TopText, ThoseWhoWaitHaveTheirPlace) {
  TopView view = SomeView();
  for (int i = 0; i < 3; ++i) view.status.requests.push_back(view.status.requests[0]);
  view.status.requests[1].phase = "queued";
  view.status.requests[2].phase = "loading";
  view.status.requests[3].phase = "queued";
  const std::string text = Joined(TopText(view, {}));
  for (const char* part : {"1 running, 3 waiting", "queued 1", "loading", "queued 3"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(TopText, HostileNamesCannotMoveTheCursor) {
  TopView view = SomeView();
  const std::string hostile =
      "\x1b[2J\x1b]0;owned\x07\n\xC2\x9B"
      "1A\xE2\x80\xAE";
  view.status.requests[0].client = hostile;
  view.status.requests[0].model = "/tmp/" + hostile;
  view.status.requests[0].phase = hostile;
  view.status.socket = hostile;
  view.status.build_id = hostile;
  AddModel(view.status, "/tmp/" + hostile);
  for (const size_t columns : {0U, 40U, 200U}) {
    TopStyle style;
    style.columns = columns;
    for (const std::string& line : TopText(view, style)) {
      for (const char c : line) {
        ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) << line;
      }
      ASSERT_EQ(line.find("\xC2\x9B"), std::string::npos);
      ASSERT_EQ(line.find("\xE2\x80\xAE"), std::string::npos);
    }
  }
}

TEST(TopText, FitsAnyTerminal) {
  TopView view = SomeView();
  for (int i = 0; i < 30; ++i) {
    AddModel(view.status, "/models/Größe/漢字/model" + std::to_string(i) + ".bin");
    view.status.requests.push_back(view.status.requests[0]);
  }
  for (size_t columns = 10; columns <= 200; columns += 19) {
    for (size_t rows = 1; rows <= 120; rows += 7) {
      TopStyle style;
      style.columns = columns;
      style.rows = rows;
      const auto lines = TopText(view, style);
      // The head alone may be taller than a tiny terminal, which cuts it.
      EXPECT_LE(lines.size(), std::max<size_t>(rows, 16)) << rows;
      for (const std::string& line : lines) ASSERT_LE(DisplayWidth(line), columns) << line;
    }
  }
  TopStyle style;
  style.columns = 100;
  style.rows = 40;
  const std::string text = Joined(TopText(view, style));
  EXPECT_NE(text.find("... and "), std::string::npos) << text;
  // Without limits nothing is left out.
  const auto all = TopText(view, {});
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const auto& line) { return line.find(".bin") != std::string::npos; }),
            61);
}

TEST(TopText, ColoursOnlyWhenWanted) {
  TopView view = SomeView();
  TopStyle style;
  style.columns = 100;
  EXPECT_EQ(Joined(TopText(view, style)).find('\x1b'), std::string::npos);
  style.color = true;
  EXPECT_NE(Joined(TopText(view, style)).find("\x1b[32mdecode"), std::string::npos);
}

TEST(TopText, SaysWhatItWaitsFor) {
  const protocol::Error trouble{
      protocol::ErrorCode::kUnreachable, "no daemon\x1b", "start one", {}};
  const std::string text = Joined(TopWaitingText(trouble, "/run/s", {}));
  EXPECT_EQ(text, "waiting for a daemon on /run/s\nno daemon\\x1b\nstart one\n");
}

}  // namespace
}  // namespace mk::client
