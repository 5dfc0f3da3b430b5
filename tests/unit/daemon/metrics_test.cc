// Histograms, the tables of metrics and their forms.

#include "daemon/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <thread>

#include "daemon/metric_sheet.h"

namespace mk::daemon {
namespace {

// The bucket that a value went to.
size_t BucketOf(HistogramRange range, uint64_t value) {
  Histogram histogram(range);
  histogram.Observe(value);
  const auto counts = histogram.Snapshot().counts();
  return static_cast<size_t>(std::find(counts.begin(), counts.end(), 1U) - counts.begin());
}

TEST(Histogram, EveryValueIsBetweenTheBoundsOfItsBucket) {
  for (const HistogramRange range : {HistogramRange{0, 6}, {3, 10}, {6, 26}, {10, 32}, {0, 32}}) {
    const HistogramSnapshot empty = Histogram(range).Snapshot();
    std::set<uint64_t> values = {0, 1, 2, 3, UINT64_MAX};
    for (int e = 0; e <= range.highest + 1; ++e) {
      for (const int64_t step : {-1, 0, 1}) {
        for (uint64_t eighth = 8; eighth < 16; ++eighth) {
          values.insert((eighth << e) / 8 + static_cast<uint64_t>(step));
        }
      }
    }
    for (const uint64_t value : values) {
      const size_t i = BucketOf(range, value);
      ASSERT_LT(i, empty.counts().size());
      const auto as_double = static_cast<double>(value);
      EXPECT_TRUE(value == 0 ? i == 0 : as_double > empty.lower(i)) << value;
      EXPECT_LE(as_double, empty.upper(i)) << value;
    }
  }
}

TEST(Histogram, BucketsAreAnEighthOfTheirDoubling) {
  const HistogramSnapshot empty = Histogram({6, 26}).Snapshot();
  EXPECT_EQ(empty.counts().size(), 20 * 8 + 2U);
  EXPECT_EQ(empty.upper(0), 64);
  EXPECT_EQ(empty.upper(1), 72);
  EXPECT_EQ(empty.upper(8), 128);
  EXPECT_EQ(empty.upper(160), 67108864);
  EXPECT_TRUE(std::isinf(empty.upper(161)));
  for (size_t i = 1; i < 161; ++i) {
    EXPECT_LE((empty.upper(i) - empty.lower(i)) / empty.lower(i), 0.125);
  }
}

TEST(Histogram, QuantilesAreWithinAnEighthOfTheTrueOnes) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> times(9, 1.5);  // around 8 ms, with a long tail
  Histogram histogram({6, 26});
  std::vector<double> values;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(std::floor(times(random)));
    histogram.Observe(static_cast<uint64_t>(values.back()));
  }
  std::sort(values.begin(), values.end());
  const HistogramSnapshot seen = histogram.Snapshot();
  EXPECT_EQ(seen.count(), values.size());
  for (const double q : {0.05, 0.5, 0.9, 0.99}) {
    const double truth = values[static_cast<size_t>(q * static_cast<double>(values.size()))];
    EXPECT_NEAR(seen.Quantile(q) / truth, 1, 0.04) << q;
  }
}

TEST(Histogram, QuantilesOfFewValues) {
  Histogram histogram({0, 6});
  EXPECT_EQ(histogram.Snapshot().Quantile(0.5), 0);
  histogram.Observe(8);
  EXPECT_NEAR(histogram.Snapshot().Quantile(0.5), 8, 0.5);
  EXPECT_EQ(histogram.Snapshot().Quantile(1), 8);
  histogram.Observe(1'000'000);  // beyond the range: the largest bound is all that is known
  EXPECT_EQ(histogram.Snapshot().Quantile(1), 64);
  EXPECT_EQ(histogram.Snapshot().sum(), 1'000'008U);
}

TEST(Histogram, SumsOfTwoAreThoseOfBoth) {
  Histogram one({0, 6});
  Histogram two({0, 6});
  one.Observe(3);
  two.Observe(3);
  two.Observe(60);
  HistogramSnapshot both = one.Snapshot();
  both.Add(two.Snapshot());
  EXPECT_EQ(both.count(), 3U);
  EXPECT_EQ(both.sum(), 66U);
  EXPECT_GT(both.Quantile(0.99), 50);
}

TEST(Metrics, NothingIsLostBetweenThreads) {
  constexpr uint64_t kEach = 20'000;
  Metrics metrics;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        metrics.Add(Counter::kGeneratedTokens, 2);
        metrics.Observe(Distribution::kDecodeBatch, t + 1);
        metrics.CountRequest(protocol::Op::kRun, kOutcomeDone);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(metrics.Get(Counter::kGeneratedTokens), 8 * kEach);
  EXPECT_EQ(metrics.Get(Distribution::kDecodeBatch).count(), 4 * kEach);
  EXPECT_EQ(metrics.Get(Distribution::kDecodeBatch).sum(), 10 * kEach);
  EXPECT_EQ(metrics.Requests(protocol::Op::kRun, kOutcomeDone), 4 * kEach);
  EXPECT_EQ(metrics.Requests(protocol::Op::kPing, kOutcomeDone), 0U);
}

TEST(Metrics, TimesThatWentBackwardsCountAsNone) {
  Metrics metrics;
  metrics.Observe(Distribution::kTokenTime, std::chrono::microseconds(-5));
  metrics.Observe(Distribution::kTokenTime, std::chrono::milliseconds(3));
  EXPECT_EQ(metrics.Get(Distribution::kTokenTime).sum(), 3000U);
  EXPECT_EQ(metrics.Get(Distribution::kTokenTime).count(), 2U);
}

// What every table must keep to.
class Names {
 public:
  void Check(const MetricInfo& info) {
    const std::string name(info.name);
    EXPECT_TRUE(seen_.emplace(name, std::string(info.value)).second) << name << " twice";
    for (const char c : name) EXPECT_TRUE(c == '_' || (c >= 'a' && c <= 'z')) << name;
    EXPECT_FALSE(name.ends_with("_total") || name.ends_with("_count") || name.ends_with("_sum") ||
                 name.ends_with("_bucket"))
        << name;
    EXPECT_TRUE(info.unit.empty() || name.ends_with("_" + std::string(info.unit))) << name;
    EXPECT_EQ(info.label.empty(), info.value.empty()) << name;
    // One help text per name, and metrics of one name side by side.
    if (name == last_) return;
    EXPECT_TRUE(names_.insert(name).second) << name << " is in two places";
    EXPECT_FALSE(info.help.empty()) << name;
    last_ = name;
  }

 private:
  std::set<std::pair<std::string, std::string>> seen_;
  std::set<std::string> names_;
  std::string last_;
};

TEST(Metrics, NamesAreUniqueAndSayTheirUnit) {
  Names names;
  names.Check(DescribeRequests());
  for (size_t i = 0; i < static_cast<size_t>(Counter::kCount); ++i) {
    names.Check(Describe(static_cast<Counter>(i)));
  }
  for (size_t i = 0; i < static_cast<size_t>(Distribution::kCount); ++i) {
    names.Check(Describe(static_cast<Distribution>(i)));
  }
  for (size_t i = 0; i < static_cast<size_t>(Gauge::kCount); ++i) {
    names.Check(Describe(static_cast<Gauge>(i)));
  }
}

TEST(Metrics, OutcomesAreTheErrorCodesAndDone) {
  using protocol::Error;
  using protocol::ErrorCode;
  std::set<std::string_view> names;
  for (Outcome outcome = 0; outcome < kOutcomes; ++outcome) names.insert(OutcomeName(outcome));
  EXPECT_EQ(names.size(), kOutcomes);
  EXPECT_EQ(kOutcomes, protocol::AllErrorCodes().size() + 1);
  EXPECT_EQ(OutcomeName(OutcomeOf(protocol::PingDone{})), "done");
  EXPECT_EQ(OutcomeName(OutcomeOf(Error{ErrorCode::kBadRequest, {}, {}, {}})), "bad_request");
  EXPECT_EQ(OutcomeName(OutcomeOf(Error{ErrorCode::kInternal, {}, {}, {}})), "internal");
  protocol::RunDone run;
  run.finish_reason = "length";
  EXPECT_EQ(OutcomeName(OutcomeOf(run)), "done");
  run.finish_reason = "cancelled";
  EXPECT_EQ(OutcomeName(OutcomeOf(run)), "cancelled");
}

TEST(MetricSheet, TextOfCountersAndGauges) {
  MetricSheet sheet;
  sheet.Add(Gauge::kConnections, 3);
  sheet.Add(Gauge::kConnectionsRefused, 4);
  sheet.Add(Gauge::kModelUsers, 1, {{"model", "a\\b\n\"c\"\xFF"}, {"entry", "7"}});
  sheet.Add(Gauge::kModelUsers, 0.1, {{"model", ""}});
  sheet.Add(Gauge::kProcessorTime, 1e-7);
  EXPECT_EQ(sheet.ToText(),
            "# HELP microkimi_connections connections that are open\n"
            "# TYPE microkimi_connections gauge\n"
            "microkimi_connections 3\n"
            "# HELP microkimi_connections_refused_total connections refused for lack of "
            "descriptors\n"
            "# TYPE microkimi_connections_refused_total counter\n"
            "microkimi_connections_refused_total 4\n"
            "# HELP microkimi_model_users requests that hold a model or wait for it\n"
            "# TYPE microkimi_model_users gauge\n"
            "microkimi_model_users{model=\"a\\\\b\\n\\\"c\\\"\xEF\xBF\xBD\",entry=\"7\"} 1\n"
            "microkimi_model_users{model=\"\"} 0.1\n"
            "# HELP process_cpu_seconds_total processor time used, user and system\n"
            "# TYPE process_cpu_seconds_total counter\n"
            "process_cpu_seconds_total 1e-07\n");
}

TEST(MetricSheet, HistogramsInTextShowWholeDoublings) {
  Metrics metrics;
  metrics.Observe(Distribution::kDecodeBatch, 1);
  metrics.Observe(Distribution::kDecodeBatch, 3);
  metrics.Observe(Distribution::kDecodeBatch, 4);
  metrics.Observe(Distribution::kDecodeBatch, 500);
  MetricSheet sheet;
  sheet.Add(metrics);
  const std::string text = sheet.ToText();
  const std::string name = "microkimi_decode_batch_sequences";
  const size_t at = text.find("# TYPE " + name);
  ASSERT_NE(at, std::string::npos);
  const std::string expected = "# TYPE " + name + " histogram\n" + name + "_bucket{le=\"1\"} 1\n" +
                               name + "_bucket{le=\"2\"} 1\n" + name + "_bucket{le=\"4\"} 3\n" +
                               name + "_bucket{le=\"8\"} 3\n" + name + "_bucket{le=\"16\"} 3\n" +
                               name + "_bucket{le=\"32\"} 3\n" + name + "_bucket{le=\"64\"} 3\n" +
                               name + "_bucket{le=\"+Inf\"} 4\n" + name + "_sum 508\n" + name +
                               "_count 4\n";
  EXPECT_EQ(text.substr(at, expected.size()), expected);
}

TEST(MetricSheet, FamiliesCarryTheFineBuckets) {
  Metrics metrics;
  metrics.Observe(Distribution::kMixedStep, 70);
  metrics.Observe(Distribution::kMixedStep, 71);
  metrics.Observe(Distribution::kMixedStep, uint64_t{1} << 40);
  MetricSheet sheet;
  sheet.Add(metrics);
  const auto families = sheet.ToWire();
  const auto family = std::find_if(families.begin(), families.end(),
                                   [](const auto& one) { return one.name == "step_seconds"; });
  ASSERT_NE(family, families.end());
  EXPECT_EQ(family->type, "histogram");
  EXPECT_EQ(family->unit, "seconds");
  ASSERT_EQ(family->samples.size(), 3U);
  const protocol::MetricSample& mixed = family->samples[2];
  EXPECT_EQ(mixed.labels.at("kind"), "mixed");
  EXPECT_EQ(mixed.count, 3U);
  ASSERT_EQ(mixed.buckets.size(), 2U);
  EXPECT_EQ(mixed.buckets[0], (protocol::MetricBucket{64e-6, 72e-6, 2}));
  EXPECT_EQ(mixed.buckets[1].count, 1U);
  EXPECT_FALSE(mixed.buckets[1].up_to.has_value());
  EXPECT_TRUE(family->samples[0].buckets.empty());
}

TEST(MetricSheet, OutcomesThatHappenedAreShownAndDoneAlways) {
  Metrics metrics;
  metrics.CountRequest(protocol::Op::kRun,
                       OutcomeOf(protocol::Error{protocol::ErrorCode::kTimeout, {}, {}, {}}));
  MetricSheet sheet;
  sheet.Add(metrics);
  const std::string text = sheet.ToText();
  const auto has = [&](const char* line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(has("microkimi_requests_total{op=\"run\",outcome=\"timeout\"} 1\n"));
  EXPECT_TRUE(has("microkimi_requests_total{op=\"run\",outcome=\"done\"} 0\n"));
  EXPECT_FALSE(has("outcome=\"busy\""));
}

}  // namespace
}  // namespace mk::daemon
