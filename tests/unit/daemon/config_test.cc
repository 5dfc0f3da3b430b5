// Config file and command line.

#include "daemon/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "daemon/options.h"
#include "temp_dir.h"

namespace mk::daemon {
namespace {

Result<LoadedConfig> Load(const std::string& text) {
  TempDir dir;
  std::ofstream(dir / "config.toml") << text;
  return LoadConfig(dir / "config.toml");
}

TEST(Config, MissingFileGivesDefaults) {
  auto loaded = LoadConfig("/nonexistent/config.toml");
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->config.max_batch, 8);
  EXPECT_EQ(loaded->config.precision, Precision::kQ8);
  EXPECT_EQ(loaded->config.keep_alive, std::chrono::minutes(10));
}

TEST(Config, EveryKeyIsRead) {
  auto loaded = Load(R"(
default_model = "story"
threads = 3
memory = "2GiB"
max_batch = 4
max_queue = 5
keep_alive = "90s"
idle_exit = "2h"
precision = "bf16"
spine_cache = false
spine_cache_limit = "3GiB"
spine_cache_smallest = 0
log_level = "debug"
[aliases]
story = "/m/story.bin"
)");
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  const Config& config = loaded->config;
  EXPECT_EQ(config.default_model, "story");
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.memory, uint64_t{2} << 30);
  EXPECT_EQ(config.max_batch, 4);
  EXPECT_EQ(config.max_queue, 5);
  EXPECT_EQ(config.keep_alive, std::chrono::seconds(90));
  EXPECT_EQ(config.idle_exit, std::chrono::hours(2));
  EXPECT_EQ(config.precision, Precision::kBf16);
  EXPECT_FALSE(config.spine_cache);
  EXPECT_EQ(config.spine_cache_limit, uint64_t{3} << 30);
  EXPECT_EQ(config.spine_cache_smallest, 0U);
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.aliases.at("story"), "/m/story.bin");
  EXPECT_TRUE(loaded->warnings.empty());
}

TEST(Config, UnknownKeyIsAWarningThatNamesItAndItsLine) {
  auto loaded = Load("threads = 1\nthraeds = 2\n");
  ASSERT_TRUE(loaded);
  ASSERT_EQ(loaded->warnings.size(), 1U);
  EXPECT_NE(loaded->warnings[0].find("\"thraeds\""), std::string::npos);
  EXPECT_NE(loaded->warnings[0].find(":2:"), std::string::npos);
}

std::vector<std::string> NamesOf(const std::vector<const cli::ConfigKey*>& keys) {
  std::vector<std::string> names;
  for (const cli::ConfigKey* key : keys) names.emplace_back(key->name);
  return names;
}

// What people are shown works: every example, written as it is shown.
TEST(Config, EveryKeyIsShownWithAnExampleThatSetsItsValue) {
  ASSERT_FALSE(cli::ConfigKeys().empty());
  // Values that no example has.
  Config other;
  other.default_model = other.log_level = other.aliases["none"] = "none";
  other.threads = other.max_batch = other.max_queue = -7;
  other.jobs_at_once = other.jobs_keep = -7;
  other.memory = other.spine_cache_limit = other.spine_cache_smallest = 7;
  other.prefix_cache_limit = other.jobs_read_limit = 7;
  other.session_states = -7;
  other.session_states_limit = other.session_memory_limit = 7;
  other.keep_alive = other.idle_exit = other.jobs_keep_for = std::chrono::milliseconds(7);
  other.session_idle = std::chrono::milliseconds(7);
  other.precision = Precision::kExact;
  other.spine_cache = other.prefix_cache = false;
  other.count_experts = other.stream_prefetch = false;
  other.stream = StreamMode::kOff;
  other.stream_memory = 7;
  other.stream_policy = CachePolicyKind::kLru;
  other.stream_io = StreamIo::kThreads;
  const Config defaults;
  for (const cli::ConfigKey& key : cli::ConfigKeys()) {
    const std::string name = key.name;
    auto loaded = Load(name + " = " + key.example + "\n");
    ASSERT_TRUE(loaded) << name << ": " << loaded.error().ToString();
    EXPECT_TRUE(loaded->warnings.empty()) << name;
    const auto set = NamesOf(ChangedKeys(other, loaded->config));
    EXPECT_NE(std::find(set.begin(), set.end(), name), set.end()) << name;
    for (const std::string& touched : NamesOf(ChangedKeys(defaults, loaded->config))) {
      EXPECT_EQ(touched, name);
    }
  }
}

TEST(Config, TheDefaultsThatAreShownAreTheDaemons) {
  const Config defaults;
  for (const cli::ConfigKey& key : cli::ConfigKeys()) {
    if (key.kind == cli::ConfigKind::kTable) {
      EXPECT_EQ(GetConfig(defaults, key), cli::ConfigValue(cli::ConfigTable())) << key.name;
      continue;
    }
    const auto shown = cli::ParseConfigValue(key, key.fallback);
    ASSERT_TRUE(shown) << key.name;
    EXPECT_EQ(*shown, GetConfig(defaults, key)) << key.name;
  }
}

TEST(Config, EveryPrecisionOfTheTableIsOneOfTheEngine) {
  const cli::ConfigKey& key = *cli::FindConfigKey("precision");
  EXPECT_EQ(key.choices.size(), kPrecisions);
  for (const char* choice : key.choices) {
    Config config;
    SetConfig(config, key, std::string(choice));
    EXPECT_EQ(GetConfig(config, key), cli::ConfigValue(std::string(choice)));
  }
}

TEST(Config, ChangedKeysAreThoseThatDiffer) {
  Config before;
  EXPECT_TRUE(ChangedKeys(before, before).empty());
  Config after = before;
  after.threads = 5;
  after.aliases["a"] = "b";
  const auto changed = ChangedKeys(before, after);
  ASSERT_EQ(changed.size(), 2U);
  EXPECT_STREQ(changed[0]->name, "threads");
  EXPECT_FALSE(changed[0]->live);
  EXPECT_STREQ(changed[1]->name, "aliases");
  EXPECT_TRUE(changed[1]->live);
}

TEST(Config, BadValuesNameTheKey) {
  for (const char* text :
       {"threads = \"two\"", "threads = -1", "memory = \"8GB\"", "memory = -4", "keep_alive = 10",
        "idle_exit = \"10ms\"", "keep_alive = \"10 parsecs\"", "max_batch = 0",
        "log_level = \"loud\"", "precision = \"auto\"", "precision = 8", "precision = \"\"",
        "spine_cache = 1", "spine_cache_limit = \"lots\"", "spine_cache_smallest = -1",
        "aliases = 3", "[aliases]\nx = 4"}) {
    auto loaded = Load(text);
    ASSERT_FALSE(loaded) << text;
    EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_FALSE(loaded.error().hint.empty()) << text;
  }
}

TEST(Config, SyntaxErrorNamesTheLine) {
  auto loaded = Load("threads = 1\nmemory = = 2\n");
  ASSERT_FALSE(loaded);
  EXPECT_NE(loaded.error().message.find(":2:"), std::string::npos) << loaded.error().message;
}

std::variant<Options, int> Parse(std::vector<const char*> args) {
  args.insert(args.begin(), "microkimid");
  return ParseOptions(static_cast<int>(args.size()), args.data(), "1.2.3");
}

TEST(Options, OverrideTheConfig) {
  auto parsed = Parse({"--socket", "/x/s", "--threads", "2", "--memory", "1GiB", "--max-batch", "3",
                       "--log-level", "warn", "--precision", "exact", "--idle-exit", "5m",
                       "--ready-fd", "7"});
  ASSERT_TRUE(std::holds_alternative<Options>(parsed));
  const Options& options = std::get<Options>(parsed);
  EXPECT_EQ(options.socket, "/x/s");
  EXPECT_EQ(options.ready_fd, 7);
  Config config;
  config.keep_alive = std::chrono::seconds(1);
  config = WithOverrides(config, options);
  EXPECT_EQ(config.idle_exit, std::chrono::minutes(5));
  EXPECT_EQ(config.threads, 2);
  EXPECT_EQ(config.memory, uint64_t{1} << 30);
  EXPECT_EQ(config.max_batch, 3);
  EXPECT_EQ(config.log_level, "warn");
  EXPECT_EQ(config.precision, Precision::kExact);
  EXPECT_EQ(config.keep_alive, std::chrono::seconds(1));
}

TEST(Options, RelativeSocketBecomesAbsolute) {
  auto parsed = Parse({"--socket", "run/s"});
  ASSERT_TRUE(std::holds_alternative<Options>(parsed));
  EXPECT_EQ(std::get<Options>(parsed).socket, (std::filesystem::current_path() / "run/s").string());
}

TEST(Options, BadOnesExitWith2AndHelpWith0) {
  for (const auto& bad : std::vector<std::vector<const char*>>{{"--bogus"},
                                                               {"--threads", "-1"},
                                                               {"--memory", "lots"},
                                                               {"--idle-exit", "soon"},
                                                               {"--log-level", "loud"},
                                                               {"--precision", "auto"},
                                                               {"positional"}}) {
    auto parsed = Parse(bad);
    ASSERT_TRUE(std::holds_alternative<int>(parsed)) << bad[0];
    EXPECT_EQ(std::get<int>(parsed), 2) << bad[0];
  }
  EXPECT_EQ(std::get<int>(Parse({"--help"})), 0);
  EXPECT_EQ(std::get<int>(Parse({"--version"})), 0);
}

}  // namespace
}  // namespace mk::daemon
