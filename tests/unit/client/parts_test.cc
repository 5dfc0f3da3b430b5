// The small parts of mk: input, dumps, output, numbers, texts.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "client/command_line.h"
#include "client/dump_file.h"
#include "client/input.h"
#include "client/json_format.h"
#include "client/output.h"
#include "client/progress.h"
#include "client/run_report.h"
#include "client/wrapped_help.h"
#include "tests/unit/client/fake_daemon.h"

namespace mk::client {
namespace {

using testing::TempFolder;

std::string FileText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST(WrapHelp, TextGoesOnBelowItselfAndNothingIsLost) {
  const std::string help =
      "  -n,--max-new N        Tokens to generate at most, of all that there are\n"
      "  --short               Fits\n";
  EXPECT_EQ(WrapHelp(help, 0), help);
  EXPECT_EQ(WrapHelp(help, 200), help);
  EXPECT_EQ(WrapHelp(help, 48),
            "  -n,--max-new N        Tokens to generate at\n"
            "                        most, of all that there\n"
            "                        are\n"
            "  --short               Fits\n");
}

TEST(WrapHelp, ALineOfJustTheWidthStays) {
  const std::string line = "  --name  twelve words";
  EXPECT_EQ(WrapHelp(line + "\n", line.size()), line + "\n");
  EXPECT_EQ(WrapHelp("    one two three four five six\n", 24),
            "    one two three four\n    five six\n");
}

TEST(WrapHelp, WithoutRoomBesideTheNameTheTextGoesBelowIt) {
  const std::string help = "  --a-long-name VALUE           what it is good for\n";
  EXPECT_EQ(WrapHelp(help, 26), "  --a-long-name VALUE\n    what it is good for\n");
  EXPECT_EQ(WrapHelp(std::string(34, ' ') + "continued text of it\n", 22),
            "    continued text of\n    it\n");
}

TEST(WrapHelp, AWordThatIsTooLongBesideTheNameGoesBelowIt) {
  EXPECT_EQ(WrapHelp("  --socket PATH           see /a/path/of/thirty/characters/x\n", 50),
            "  --socket PATH\n    see /a/path/of/thirty/characters/x\n");
}

TEST(WrapHelp, ExamplesStayAsTheyAre) {
  const std::string example = "  mk run --temp 0.7 --top-p 0.9 \"Once upon a time\"\n";
  const std::string text = "Words that are broken here\n";
  EXPECT_EQ(WrapHelp("Examples:\n" + example + "\n" + text, 22),
            "Examples:\n" + example + "\n" + WrapHelp(text, 22));
  EXPECT_EQ(WrapHelp(text, 22), "Words that are broken\nhere\n");
}

TEST(WrapHelp, WideCharactersCountTwice) {
  EXPECT_EQ(
      WrapHelp("\u5b57\u5b57\u5b57\u5b57 \u5b57\u5b57\u5b57\u5b57 \u5b57\u5b57\u5b57\u5b57\n", 21),
      "\u5b57\u5b57\u5b57\u5b57 \u5b57\u5b57\u5b57\u5b57\n\u5b57\u5b57\u5b57\u5b57\n");
}

TEST(Ids, ListsAreReadInAnyUsualForm) {
  const std::vector<int32_t> expected = {1, 22, 2147483647};
  for (const char* text :
       {"1,22,2147483647", "1 22 2147483647", "1 , 22 2147483647", " [1, 22,\n2147483647]\n"}) {
    EXPECT_EQ(ReadIds(text).value(), expected) << text;
  }
  const TempFolder folder;
  std::ofstream(folder / "ids") << "1\n22\n2147483647\n";
  EXPECT_EQ(ReadIds("@" + (folder / "ids")).value(), expected);
}

TEST(Ids, WhatIsNoIdIsNamed) {
  for (const char* text : {"1,x", "-1", "2147483648", "1.5", "1e3", "", ",", "1;2", "1,,2", "1, ,2",
                           "1,2,", ",1", "[1,2", "1,2]", "[1] [2]", "[[1]]", "[]", "1 ,\n, 2"}) {
    const auto ids = ReadIds(text);
    ASSERT_FALSE(ids.has_value()) << text;
    EXPECT_EQ(ids.error().code, protocol::ErrorCode::kBadRequest) << text;
  }
  EXPECT_EQ(ReadIds("@/no/such/file").error().code, protocol::ErrorCode::kNotFound);
}

TEST(Text, FilesLoseOneNewlineAtTheirEnd) {
  const TempFolder folder;
  std::ofstream(folder / "t") << "two\n\n";
  TextSource source;
  source.file = folder / "t";
  EXPECT_EQ(ReadText(source, "prompt").value(), "two\n");
}

TEST(Text, ArgumentsAreTakenAsTheyAre) {
  TextSource source{"x\n", true, ""};
  EXPECT_EQ(ReadText(source, "prompt").value(), "x\n");
  source.file = "y";
  EXPECT_FALSE(ReadText(source, "prompt").has_value());
}

TEST(Durations, UnitsAreUnderstood) {
  EXPECT_EQ(ParseDurationMs("90").value(), 90000u);
  EXPECT_EQ(ParseDurationMs("1.5s").value(), 1500u);
  EXPECT_EQ(ParseDurationMs("250ms").value(), 250u);
  EXPECT_EQ(ParseDurationMs("10m").value(), 600000u);
  EXPECT_EQ(ParseDurationMs("2h").value(), 7200000u);
  for (const char* text : {"", "s", "-1", "1d", "1 s", "1e99", "nan", "inf"}) {
    EXPECT_FALSE(ParseDurationMs(text).has_value()) << text;
  }
}

TEST(Paths, ModelsAreNamesOrAbsolutePaths) {
  EXPECT_EQ(ModelArgument("story"), "story");
  EXPECT_EQ(ModelArgument("/a/b.bin"), "/a/b.bin");
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(ModelArgument("./b"), here + "/b");
  EXPECT_EQ(ModelArgument(".//./b"), here + "/b");
  EXPECT_EQ(ModelArgument("../b"), here + "/../b");
  EXPECT_EQ(ModelArgument("not-here.bin"), "not-here.bin");
}

protocol::TensorChunk Piece(uint64_t position, uint64_t row, uint64_t offset, std::string data) {
  return {"logits", position, row, offset, std::move(data)};
}

TEST(Dump, RowsInPiecesBecomeOneFile) {
  const TempFolder folder;
  auto file = DumpFile::Create(folder / "d").value();
  ASSERT_TRUE(file.Append(Piece(5, 8, 0, "abcd")));
  ASSERT_TRUE(file.Append(Piece(5, 8, 4, "efgh")));
  ASSERT_TRUE(file.Append(Piece(6, 8, 0, "ijklmnop")));
  EXPECT_FALSE(std::filesystem::exists(folder / "d")) << "not before it is whole";
  ASSERT_TRUE(file.Commit());
  EXPECT_EQ(FileText(folder / "d"), "abcdefghijklmnop");
  EXPECT_EQ(file.rows(), 2u);
}

TEST(Dump, PiecesThatDoNotFitAreRefused) {
  const TempFolder folder;
  const auto refused = [&](std::vector<protocol::TensorChunk> pieces) {
    auto file = DumpFile::Create(folder / "d").value();
    for (size_t i = 0; i + 1 < pieces.size(); ++i) EXPECT_TRUE(file.Append(pieces[i])) << i;
    return !file.Append(pieces.back());
  };
  EXPECT_TRUE(refused({Piece(0, 8, 4, "efgh")})) << "starts in the middle";
  EXPECT_TRUE(refused({Piece(0, 4, 0, "abcdefgh")})) << "longer than its row";
  EXPECT_TRUE(refused({Piece(0, 4, 0, "abcd"), Piece(2, 4, 0, "abcd")})) << "a row is missing";
  EXPECT_TRUE(refused({Piece(0, 8, 0, "abcd"), Piece(1, 8, 4, "abcd")})) << "of two rows";
  EXPECT_TRUE(refused({Piece(0, 4, 0, "abcd"), Piece(1, 8, 0, "abcd")})) << "rows of two sizes";
  EXPECT_TRUE(refused({Piece(0, 4, 0, "")})) << "empty";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing is left behind";
}

TEST(Dump, AnUnfinishedRowIsNotCommitted) {
  const TempFolder folder;
  {
    auto file = DumpFile::Create(folder / "d").value();
    ASSERT_TRUE(file.Append(Piece(0, 8, 0, "abcd")));
    EXPECT_FALSE(file.Commit());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Dump, UnwritablePlacesAreErrors) {
  EXPECT_FALSE(DumpFile::Create("/no/such/folder/d").has_value());
}

TEST(Output, AFullPipeDoesNotBlock) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  Output output(writer.get());
  std::string all;
  for (int i = 0; i < 100000; ++i) all += std::to_string(i);
  output.Write(all);
  output.Pump();
  EXPECT_TRUE(output.pending());
  std::string read;
  std::vector<char> buffer(1000);
  while (read.size() < all.size()) {
    const ssize_t got = ::read(reader.get(), buffer.data(), buffer.size());
    ASSERT_GT(got, 0);
    read.append(buffer.data(), static_cast<size_t>(got));
    output.Pump();
  }
  EXPECT_TRUE(read == all);
  EXPECT_FALSE(output.pending());
}

TEST(Output, AReaderThatLeftIsNoticed) {
  ::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  Output output(writer.get());
  reader.Reset();
  output.Write("x");
  EXPECT_FALSE(output.Drain());
  EXPECT_EQ(output.error(), EPIPE);
}

TEST(Output, AFullDiskIsNoticed) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full) GTEST_SKIP() << "no /dev/full";
  Output output(full.get());
  output.Write("x");
  EXPECT_FALSE(output.Drain());
  EXPECT_EQ(output.error(), ENOSPC);
}

TEST(Texts, BytesAndTimesReadWell) {
  EXPECT_EQ(BytesText(17), "17 bytes");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(BytesText(UINT64_MAX), "16777216 TiB");
  EXPECT_EQ(DurationText(3.2), "3 s");
  EXPECT_EQ(DurationText(250), "4 min 10 s");
  EXPECT_EQ(DurationText(7500), "2 h 5 min");
}

TEST(Texts, ProgressShowsShareRateAndRest) {
  const std::string text = ProgressText({"verify", 1 << 20, 4 << 20, "bytes"}, 2);
  EXPECT_NE(text.find(" 25 %"), std::string::npos) << text;
  EXPECT_NE(text.find("1.0 MiB of 4.0 MiB, 512 KiB/s, 6 s left"), std::string::npos) << text;
  EXPECT_NE(text.find("[######------------------]"), std::string::npos) << text;
  // Nonsense from a peer is shown as well as it can be.
  EXPECT_NE(ProgressText({"build", 9, 3, "percent"}, 5).find("100 %"), std::string::npos);
  EXPECT_EQ(ProgressText({"load", 5, 0, "bytes"}, 5), "loading the model");
}

TEST(JsonText, ErrorsCarryAllTheyHave) {
  const Json json = ErrorToJson({protocol::ErrorCode::kBusy,
                                 "m\n\"quoted\"",
                                 "h",
                                 {{"n", int64_t{3}}, {"s", std::string("x")}}});
  EXPECT_EQ(JsonLine(json),
            "{\"error\":{\"code\":\"busy\",\"message\":\"m\\n\\\"quoted\\\"\",\"hint\":\"h\","
            "\"details\":{\"n\":3,\"s\":\"x\"}}}\n");
}

TEST(RunStats, ARunWithoutATokenHasNoTimeOfItsFirst) {
  protocol::RunDone done;
  done.finish_reason = "cancelled";
  EXPECT_EQ(RunStatsText(done).find("first token"), std::string::npos) << RunStatsText(done);
  done.usage.completion_tokens = 1;
  done.timing.ttft_ms = 1500;
  EXPECT_NE(RunStatsText(done).find("first token after 1.50 s; "), std::string::npos);
}

}  // namespace
}  // namespace mk::client
