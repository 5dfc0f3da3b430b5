// Profiles as text, disks, random demands.

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/plan/disk_probe.h"
#include "engine/plan/machine_profile.h"
#include "engine/plan/synthetic_trace.h"

namespace mk {
namespace {

MachineProfile SomeProfile() {
  MachineProfile profile;
  profile.processor = "A \"processor\"";
  profile.kernels.threads = 3;
  profile.kernels.read_gb_per_s = 12.5;
  for (size_t p = 0; p < kPrecisions; ++p) {
    const double x = 1.25 + static_cast<double>(p);
    profile.kernels.rates[p] = {x, 2 * x, 3 * x, 4 * x, 5 * x};
  }
  profile.layer_costs["k3"] = {1e-5, 2e-6};
  profile.SetDisk({{1e-4, 2e9, 32}, 7, true});
  profile.SetDisk({{5e-3, 1e8, 8}, 9, false});
  profile.SetModel({"abc", Precision::kBf16, 3, 0.01, 0.001});
  return profile;
}

TEST(Profile, IsReadAsItWasWritten) {
  const MachineProfile profile = SomeProfile();
  const std::string text = ToJsonText(profile);
  const auto read = ParseProfile(text, "p");
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(ToJsonText(*read), text);
  EXPECT_EQ(read->Disk(7)->timing, profile.disks[0].timing);
  EXPECT_TRUE(read->Disk(7)->direct);
  EXPECT_FALSE(read->Disk(9)->direct);
  // A disk that was never measured: the last one that was.
  EXPECT_EQ(read->Disk(1)->device, 9u);
  ASSERT_NE(read->Find("abc", Precision::kBf16, 3), nullptr);
  EXPECT_EQ(read->Find("abc", Precision::kBf16, 3)->decode_s, 0.01);
  EXPECT_EQ(read->Find("abc", Precision::kQ8, 3), nullptr);
  EXPECT_EQ(read->Find("abc", Precision::kBf16, 2), nullptr);
}

TEST(Profile, ReplacesWhatIsMeasuredAgainAndStaysSmall) {
  MachineProfile profile = SomeProfile();
  profile.SetDisk({{1e-5, 5e9, 32}, 7, true});
  EXPECT_EQ(profile.disks.size(), 2u);
  EXPECT_EQ(profile.disks.back().device, 7u);
  for (size_t i = 0; i < 500; ++i) {
    profile.SetModel({std::to_string(i), Precision::kQ8, 1, 1, 1});
    profile.SetDisk({{1, 1, 1}, 100 + i, true});
  }
  EXPECT_LE(profile.models.size(), 64u);
  EXPECT_LE(profile.disks.size(), 16u);
  EXPECT_NE(profile.Find("499", Precision::kQ8, 1), nullptr);
}

// Whatever is taken away or put in the place of a value is an error, never a plan from nonsense.
TEST(Profile, RefusesWhatCannotBe) {
  const auto whole = nlohmann::json::parse(ToJsonText(SomeProfile()));
  const auto flat = whole.flatten();
  std::vector<nlohmann::json::json_pointer> places;
  for (const auto& [place, value] : flat.items()) places.emplace_back(place);
  ASSERT_GT(places.size(), 30u);
  for (const auto& place : places) {
    for (const nlohmann::json& value : {nlohmann::json(-1), nlohmann::json(1e300),
                                        nlohmann::json("x"), nlohmann::json::array()}) {
      const bool text = whole[place].is_string() && value.is_string();
      const bool known = place.to_string().find("/precision") == std::string::npos;
      if ((text && known) || whole[place].is_boolean()) continue;
      auto damaged = whole;
      damaged[place] = value;
      const auto read = ParseProfile(damaged.dump(), "p");
      ASSERT_FALSE(read) << place << " = " << value;
      EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
    }
  }
  for (const char* text : {"", "{}", "[]", "nonsense", "{\"version\": 2}", "\xff"}) {
    EXPECT_FALSE(ParseProfile(text, "p")) << text;
  }
}

class Scratch {
 public:
  Scratch()
      : path_(std::filesystem::temp_directory_path() / ("mk_disk_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

TEST(Disk, IsMeasuredAndLeavesNothing) {
  const Scratch scratch;
  const auto disk = MeasureDiskOf(scratch.path(), 4);
  ASSERT_TRUE(disk) << disk.error().ToString();
  EXPECT_GT(disk->timing.bytes_per_s, 0);
  EXPECT_GE(disk->timing.latency_s, 0);
  EXPECT_EQ(disk->timing.depth, 4u);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(Disk, MeasuresSmallFilesAndNamesBadOnes) {
  const Scratch scratch;
  { std::ofstream(scratch / "small") << "hello"; }
  { std::ofstream(scratch / "empty") << ""; }
  EXPECT_TRUE(MeasureDisk(scratch / "small", 2));
  const auto empty = MeasureDisk(scratch / "empty", 2);
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(MeasureDisk(scratch / "none", 2).error().code, ErrorCode::kNotFound);
  const auto cancelled = MeasureDiskOf(scratch.path(), 2, [] { return false; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
}

TEST(SyntheticTrace, PicksDifferentExpertsOfLayersThatHaveThem) {
  SyntheticRouting routing{{false, true, true, false, true}, 24, 5, 0.8, 3};
  const DemandTrace trace = MakeTrace(routing, {1, 1, 7, 1});
  const auto starts = trace.PassStarts();
  ASSERT_EQ(starts.size(), 5u);
  for (size_t pass = 0; pass < 4; ++pass) {
    std::set<ExpertKey> seen;
    std::map<size_t, size_t> of_layer;
    for (size_t i = starts[pass]; i < starts[pass + 1]; ++i) {
      EXPECT_TRUE(seen.insert(trace.demands[i]).second);
      ++of_layer[trace.layer_of(trace.demands[i])];
    }
    ASSERT_EQ(of_layer.size(), 3u);
    for (const auto& [layer, count] : of_layer) {
      EXPECT_TRUE(routing.in_layer[layer]);
      if (pass == 2) {
        EXPECT_GT(count, 5u);
      } else {
        EXPECT_EQ(count, 5u);
      }
    }
  }
  EXPECT_EQ(MakeTrace(routing, {1, 1, 7, 1}).demands, trace.demands);
}

// With one pick per token the counts follow Zipf's law.
TEST(SyntheticTrace, HasTheSkewThatIsAskedFor) {
  for (const double skew : {0.0, 0.6, 1.5}) {
    const SyntheticRouting routing{{true, true}, 8, 1, skew, 5};
    const DemandTrace trace = MakeTrace(routing, std::vector<size_t>(20'000, 1));
    std::vector<double> counts(8);
    for (const ExpertKey key : trace.demands) counts[key % 8] += trace.layer_of(key) == 0 ? 1 : 0;
    std::sort(counts.rbegin(), counts.rend());
    double sum = 0;
    for (size_t r = 1; r <= 8; ++r) sum += std::pow(r, -skew);
    for (size_t r = 1; r <= 8; ++r) {
      EXPECT_NEAR(counts[r - 1] / 20'000, std::pow(r, -skew) / sum, 0.015) << skew << " " << r;
    }
  }
}

}  // namespace
}  // namespace mk
