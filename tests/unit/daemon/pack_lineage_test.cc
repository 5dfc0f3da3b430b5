// How the last answer in a pack is finished: what was told is read again, and nothing else is
// believed.

#include "daemon/pack_lineage.h"

#include <gtest/gtest.h>

namespace mk::daemon {
namespace {

using Ids = std::vector<int32_t>;

TEST(PackLineage, TellsTheClosingIds) {
  const Ids closing = {0, 7, 99};
  nlohmann::json lineage = {{"operation", "run"}};
  PutClosing(closing, lineage);
  EXPECT_EQ(*ClosingIn(lineage.dump(), "p", 100), closing);
  EXPECT_EQ(*ClosingIn(ClosingLineage(closing), "p", 100), closing);
  EXPECT_EQ(ClosingLineage({}), "");
  for (const char* nothing :
       {"", "{}", R"({"operation":"merge"})", "[1,2]", "3", "no JSON", "{\"closing\":[1]"}) {
    EXPECT_EQ(*ClosingIn(nothing, "p", 100), Ids()) << nothing;
  }
}

TEST(PackLineage, IsNotBelieved) {
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  for (const std::string& closing :
       {std::string("{\"closing\":3}"), std::string("{\"closing\":[-1]}"),
        std::string("{\"closing\":[100]}"), std::string("{\"closing\":[1.5]}"),
        std::string("{\"closing\":[\"1\"]}"), std::string("{\"closing\":[18446744073709551615]}"),
        "{\"closing\":[" + many + "]}"}) {
    const auto told = ClosingIn(closing, "/p.mkmem", 100);
    ASSERT_FALSE(told) << closing;
    EXPECT_EQ(told.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(told.error().message.find("/p.mkmem"), std::string::npos);
  }
}

}  // namespace
}  // namespace mk::daemon
