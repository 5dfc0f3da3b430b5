// Error codes, ops and versions.

#include <gtest/gtest.h>

#include <set>

#include "protocol/messages.h"

namespace mk::protocol {
namespace {

TEST(ErrorCodes, NamesAreUniqueAndFoundAgain) {
  std::set<std::string_view> names;
  for (const ErrorCodeInfo& info : AllErrorCodes()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(ErrorCodeFromName(info.name), info.code);
    EXPECT_NE(info.exit_code, 0) << info.name;
    EXPECT_FALSE(info.text.empty());
  }
  EXPECT_FALSE(ErrorCodeFromName("no_such_code"));
}

TEST(ErrorCodes, ExitCodesAreTheDocumentedOnes) {
  EXPECT_EQ(ExitCodeOf(ErrorCode::kBadRequest), 2);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kUnreachable), 3);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kShuttingDown), 3);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kUnsupportedVersion), 5);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kBusy), 6);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kModelNotFound), 7);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kTimeout), 124);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kCancelled), 130);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kModelCorrupt), 1);
}

TEST(Ops, NamesAreFoundAgain) {
  for (size_t i = 0; i < std::variant_size_v<Args>; ++i) {
    const Op op = static_cast<Op>(i);
    EXPECT_EQ(OpFromName(InfoOf(op).name), op);
    EXPECT_FALSE(InfoOf(op).doc.empty());
  }
  EXPECT_FALSE(OpFromName("no_such_op"));
}

TEST(Ops, FieldsAreListedWithTypeAndRange) {
  const auto fields = FieldsOf(Op::kRun);
  const auto find = [&](std::string_view name) {
    return *std::find_if(fields.begin(), fields.end(),
                         [&](const FieldInfo& field) { return field.name == name; });
  };
  EXPECT_EQ(find("model").type, "text");  // an inlined one
  EXPECT_EQ(find("ids").type, "list of int");
  EXPECT_EQ(find("messages").type, "list of map");
  EXPECT_EQ(find("top_p").range, "above 0, at most 1");
  EXPECT_EQ(find("dialect").range, "k3, nano-sft, dsv4");
  EXPECT_EQ(find("window").range, "1 to 4096");
  EXPECT_FALSE(find("prompt").required);
}

TEST(Version, EqualBuildsAgree) {
  EXPECT_EQ(Negotiate(Side::kClient, kProtocolMin, kProtocolMax, "x").value(), kProtocolMax);
  EXPECT_EQ(Negotiate(Side::kClient, kProtocolMin, kProtocolMax + 5, "x").value(), kProtocolMax);
}

TEST(Version, TheOldSideIsNamedWithWhatMendsIt) {
  const auto new_client = Negotiate(Side::kClient, kProtocolMax + 1, kProtocolMax + 2, "9.9+x");
  ASSERT_FALSE(new_client);
  EXPECT_EQ(new_client.error().code, ErrorCode::kUnsupportedVersion);
  EXPECT_NE(new_client.error().message.find("daemon is too old"), std::string::npos);
  EXPECT_NE(new_client.error().message.find("9.9+x"), std::string::npos);
  EXPECT_NE(new_client.error().hint.find("mk restart"), std::string::npos);

  const auto new_daemon = Negotiate(Side::kDaemon, kProtocolMax + 1, kProtocolMax + 2, "9.9+x");
  ASSERT_FALSE(new_daemon);
  EXPECT_NE(new_daemon.error().message.find("this mk is too old"), std::string::npos);

  const auto old_client = Negotiate(Side::kClient, 0, 0, "0.0+x");
  ASSERT_FALSE(old_client);
  EXPECT_NE(old_client.error().message.find("this mk is too old"), std::string::npos);
}

TEST(Version, ARangeUpsideDownIsRefused) {
  EXPECT_EQ(Negotiate(Side::kClient, 3, 2, "x").error().code, ErrorCode::kBadRequest);
}

TEST(Version, TheBuildIdBeginsWithTheVersion) {
  EXPECT_TRUE(BuildId().starts_with(Version()));
  EXPECT_GT(BuildId().size(), Version().size() + 1);
}

}  // namespace
}  // namespace mk::protocol
