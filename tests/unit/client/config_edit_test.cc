// Changing one setting of a config file leaves the rest as it is.

#include "client/config_edit.h"

#include <gtest/gtest.h>

#include "cli/config_keys.h"
#include "cli/config_text.h"

namespace mk::client {
namespace {

std::string Set(const std::string& text, const std::string& name, const std::string& written) {
  const auto target = FindTarget(name);
  EXPECT_TRUE(target) << name;
  auto changed = SetInConfig(text, *target, written);
  EXPECT_TRUE(changed) << changed.error().message;
  return changed ? *changed : "";
}

std::string Unset(const std::string& text, const std::string& name) {
  auto changed = UnsetInConfig(text, *FindTarget(name));
  EXPECT_TRUE(changed) << changed.error().message;
  return changed ? changed->value_or("(was not set)") : "";
}

TEST(ConfigEdit, AValueIsReplacedWhereItStands) {
  EXPECT_EQ(Set("# mine\nthreads = 4   # four\n\n[aliases]\na = \"b\"\n", "threads", "8"),
            "# mine\nthreads = 8   # four\n\n[aliases]\na = \"b\"\n");
  EXPECT_EQ(Set("keep_alive='10m'#x\r\nthreads=1\r\n", "keep_alive", "\"2h\""),
            "keep_alive=\"2h\"#x\r\nthreads=1\r\n");
}

TEST(ConfigEdit, ANewKeyStandsBeforeSections) {
  EXPECT_EQ(Set("", "threads", "8"), "threads = 8\n");
  EXPECT_EQ(Set("max_batch = 2", "threads", "8"), "max_batch = 2\nthreads = 8\n");
  EXPECT_EQ(Set("# top\n\n# my models\n[aliases]\na = \"b\"\n", "threads", "8"),
            "# top\n\nthreads = 8\n\n# my models\n[aliases]\na = \"b\"\n");
  EXPECT_EQ(Set("max_batch = 2\r\n", "threads", "8"), "max_batch = 2\r\nthreads = 8\r\n");
}

TEST(ConfigEdit, AliasesKeepTheFormOfTheirTable) {
  EXPECT_EQ(Set("threads = 1\n", "aliases.a", "\"x\""), "threads = 1\n\n[aliases]\na = \"x\"\n");
  EXPECT_EQ(Set("[aliases]\na = \"b\" # one\n", "aliases.c", "\"d\""),
            "[aliases]\na = \"b\" # one\nc = \"d\"\n");
  EXPECT_EQ(Set("aliases = { a = \"b\" }\n", "aliases.c", "\"d\""),
            "aliases = { a = \"b\", c = \"d\" }\n");
  EXPECT_EQ(Set("aliases.a = \"b\"\nthreads = 1\n", "aliases.c", "\"d\""),
            "aliases.a = \"b\"\naliases.c = \"d\"\nthreads = 1\n");
  EXPECT_EQ(Set("[aliases]\n", "aliases.a b", "\"d\""), "[aliases]\n\"a b\" = \"d\"\n");
  EXPECT_EQ(Set("[aliases]\na = \"b\"\n", "aliases.a", "\"d\""), "[aliases]\na = \"d\"\n");
}

TEST(ConfigEdit, UnsetTakesTheLineAndNoMore) {
  EXPECT_EQ(Unset("# a\nthreads = 4 # b\n# c\n", "threads"), "# a\n# c\n");
  EXPECT_EQ(Unset("# a\n", "threads"), "(was not set)");
  EXPECT_EQ(Unset("[aliases]\na = \"b\"\nc = \"d\"\n", "aliases.a"), "[aliases]\nc = \"d\"\n");
  EXPECT_EQ(Unset("aliases = { a = \"b\", c = \"d\" }\n", "aliases.a"),
            "aliases = { c = \"d\" }\n");
  EXPECT_EQ(Unset("threads = 1\n[aliases]\na = \"b\"\n", "aliases"), "threads = 1\n");
}

TEST(ConfigEdit, WideCharactersDoNotShiftPlaces) {
  EXPECT_EQ(Set("aliases = { \"größe\" = \"ü\", b = \"c\" } # ä\n", "aliases.b", "\"d\""),
            "aliases = { \"größe\" = \"ü\", b = \"d\" } # ä\n");
}

TEST(ConfigEdit, AFileThatIsNoTomlIsLeftAlone) {
  const auto changed = SetInConfig("threads = = 1\n", *FindTarget("threads"), "2");
  ASSERT_FALSE(changed);
  EXPECT_NE(changed.error().message.find("line 1"), std::string::npos) << changed.error().message;
  EXPECT_FALSE(UnsetInConfig("[open\n", *FindTarget("threads")));
}

TEST(ConfigEdit, MistypedNamesAreCorrected) {
  const auto target = FindTarget("max_bacth");
  ASSERT_FALSE(target);
  EXPECT_EQ(target.error().hint, "did you mean max_batch?");
  EXPECT_FALSE(FindTarget("threads.x"));
  EXPECT_FALSE(FindTarget("aliases."));
  EXPECT_EQ(FindTarget("aliases.a.b")->alias, "a.b");
}

// What is set can be read back, for every key.
TEST(ConfigEdit, EveryKeyCanBeSetToItsExample) {
  std::string text = "# mine\n";
  for (const cli::ConfigKey& key : cli::ConfigKeys()) {
    if (key.kind == cli::ConfigKind::kTable) continue;
    text = Set(text, key.name, key.example);
    const cli::ConfigText read = cli::ReadConfigText(text);
    EXPECT_TRUE(read.problems.empty()) << text;
    const auto value = cli::ValueIn(read, key);
    ASSERT_TRUE(value) << key.name;
    const std::string shown = cli::ShowConfigValue(key, *value);
    EXPECT_EQ(*cli::ParseConfigValue(key, shown), *value) << key.name;
    EXPECT_EQ(Set(text, key.name, cli::WriteConfigValue(key, *value)), text) << key.name;
  }
}

TEST(ConfigKeys, ValuesAreReadAsPeopleTypeThem) {
  const auto parse = [](const char* key, const char* text) {
    return cli::ParseConfigValue(*cli::FindConfigKey(key), text);
  };
  EXPECT_EQ(*parse("keep_alive", "250ms"), cli::ConfigValue(int64_t{250}));
  EXPECT_EQ(*parse("keep_alive", "2h"), cli::ConfigValue(int64_t{7'200'000}));
  EXPECT_EQ(*parse("keep_alive", "-1"), cli::ConfigValue(int64_t{-1}));
  EXPECT_EQ(*parse("idle_exit", "1s"), cli::ConfigValue(int64_t{1000}));
  for (const char* bad : {"0", "999ms", "", "soon"}) EXPECT_FALSE(parse("idle_exit", bad)) << bad;
  for (const char* bad : {"", "h", "10", "-5s", "1.5s", "99999999999999999999d", "10s "}) {
    EXPECT_FALSE(parse("keep_alive", bad)) << bad;
  }
  EXPECT_EQ(*parse("memory", "512MiB"), cli::ConfigValue(int64_t{512} << 20));
  EXPECT_EQ(*parse("memory", "65536"), cli::ConfigValue(int64_t{65'536}));
  EXPECT_EQ(*parse("prefix_cache_limit", "17"), cli::ConfigValue(int64_t{17}));
  EXPECT_EQ(*parse("memory", "auto"), cli::ConfigValue(int64_t{0}));
  for (const char* bad : {"", "GiB", "-1", "8 GiB", "99999999999TiB", "17", "65535"}) {
    EXPECT_FALSE(parse("memory", bad)) << bad;
  }
  for (const char* bad : {"0", "65", "x", "1.0", ""}) EXPECT_FALSE(parse("max_batch", bad)) << bad;
}

}  // namespace
}  // namespace mk::client
