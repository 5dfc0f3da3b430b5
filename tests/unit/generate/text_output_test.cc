#include "engine/generate/text_output.h"

#include <gtest/gtest.h>

#include "engine/tokenizer/byte_tokenizer.h"

namespace mk {
namespace {

class TextOutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::shared_ptr<const Tokenizer>> made = MakeByteTokenizer(512);
    ASSERT_TRUE(made);
    tokenizer_ = *made;
  }

  TextOutput Make(std::vector<std::string> stops, bool channels = false) const {
    return TextOutput(tokenizer_, channels ? tokenizer_->NewChannelParser({}) : nullptr,
                      std::move(stops));
  }

  static std::string Show(const std::vector<TextPiece>& pieces) {
    std::string out;
    for (const TextPiece& piece : pieces) {
      out += (piece.channel == Channel::kAnswer ? "A:" : "R:") + piece.text + ";";
    }
    return out;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(TextOutputTest, WholeCharactersOnly) {
  TextOutput output = Make({});
  std::vector<TextPiece> pieces;
  for (const int32_t id : {0xE2, 0x82}) EXPECT_TRUE(output.Push(id, pieces));
  EXPECT_TRUE(pieces.empty());
  EXPECT_TRUE(output.Push(0xAC, pieces));
  EXPECT_EQ(Show(pieces), "A:€;");
  output.Push(0xF0, pieces);
  output.Finish(pieces);
  EXPECT_EQ(Show(pieces), "A:€;A:\uFFFD;");
}

TEST_F(TextOutputTest, ASpecialTokenBreaksACharacter) {
  TextOutput output = Make({});
  std::vector<TextPiece> pieces;
  for (const int32_t id : {0xE2, 0x82, tokenizer_->specials().pad, 0xAC}) output.Push(id, pieces);
  output.Finish(pieces);
  EXPECT_EQ(Show(pieces), "A:\uFFFD;A:\uFFFD;");
}

TEST_F(TextOutputTest, ChannelsFlushWhatIsHeldBack) {
  const SpecialTokens& s = tokenizer_->specials();
  TextOutput output = Make({"xyz"}, true);
  std::vector<TextPiece> pieces;
  const auto push = [&](const std::string& text) {
    for (const char c : text) ASSERT_TRUE(output.Push(static_cast<uint8_t>(c), pieces));
  };
  push("hmxy");  // "xy" could become a stop string
  EXPECT_EQ(Show(pieces), "R:h;R:m;");
  output.Push(s.close, pieces);
  EXPECT_EQ(Show(pieces), "R:h;R:m;R:xy;");
  push("think");
  output.Push(s.sep, pieces);
  output.Push(s.open, pieces);
  push("response");
  output.Push(s.sep, pieces);
  pieces.clear();
  push("zaxy");  // a stop string does not reach across channels
  EXPECT_EQ(Show(pieces), "A:z;A:a;");
  EXPECT_FALSE(output.Push('z', pieces));
  output.Finish(pieces);
  EXPECT_EQ(Show(pieces), "A:z;A:a;");
  EXPECT_EQ(output.matched_stop(), 0u);
}

TEST_F(TextOutputTest, StopStringsSpanTokens) {
  TextOutput output = Make({"<|300|>b"});
  std::vector<TextPiece> pieces;
  EXPECT_TRUE(output.Push('a', pieces));
  EXPECT_TRUE(output.Push(300, pieces));
  EXPECT_EQ(Show(pieces), "A:a;");
  EXPECT_FALSE(output.Push('b', pieces));
  EXPECT_EQ(Show(pieces), "A:a;");
}

}  // namespace
}  // namespace mk
