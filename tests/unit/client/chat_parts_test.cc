// The parts of mk chat that need no terminal and no daemon.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "client/chat_values.h"
#include "client/conversation.h"
#include "client/input_history.h"
#include "client/slash_commands.h"
#include "client/transcript.h"
#include "client/turn_text.h"
#include "client/wide_text.h"
#include "tests/unit/client/fake_daemon.h"

namespace mk::client {
namespace {

using testing::TempFolder;

std::string FileText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

// ---------------------------------------------------------------- turn text

// The texts that lines make; what is not whole at the end in brackets.
std::vector<std::string> Texts(const std::vector<std::string>& lines) {
  TurnText turn;
  std::vector<std::string> texts;
  for (const std::string& line : lines) {
    if (turn.Push(line)) texts.push_back(turn.text());
  }
  if (turn.open()) texts.push_back("[" + turn.text() + "]");
  return texts;
}

TEST(TurnText, LinesGoOnBehindABackslashAndInsideMarks) {
  using V = std::vector<std::string>;
  EXPECT_EQ(Texts({"one", "two"}), (V{"one", "two"}));
  EXPECT_EQ(Texts({"one\\", "two\\", "three", "four"}), (V{"one\ntwo\nthree", "four"}));
  EXPECT_EQ(Texts({"\"\"\"one", "", "two\"\"\"", "x"}), (V{"one\n\ntwo", "x"}));
  EXPECT_EQ(Texts({"\"\"\"", "one\\", "two", "\"\"\""}), (V{"one\\\ntwo"}));
  EXPECT_EQ(Texts({"\"\"\"one\"\"\""}), (V{"one"}));
  EXPECT_EQ(Texts({"a\"\"\"", "b"}), (V{"a\"\"\"", "b"}));
  EXPECT_EQ(Texts({"one\\"}), (V{"[one\n]"}));
  EXPECT_EQ(Texts({"\"\"\"one"}), (V{"[one\n]"}));
}

TEST(TurnText, WhatIsDroppedLeavesNothingBehind) {
  TurnText turn;
  EXPECT_FALSE(turn.Push("\"\"\"one"));
  turn.Drop();
  EXPECT_FALSE(turn.open());
  ASSERT_TRUE(turn.Push("two"));
  EXPECT_EQ(turn.text(), "two");
}

// ---------------------------------------------------------------- conversation

TEST(Conversation, PlainTextIsJoinedByABlankWhereWordsWouldRunTogether) {
  Conversation said;
  EXPECT_EQ(said.Joined("Once"), "Once");
  said.turns.push_back({"Once", {"assistant", " upon a time", {}, {}}});
  EXPECT_EQ(said.Joined("there"), " there");
  EXPECT_EQ(said.Joined(", there"), ", there");
  EXPECT_EQ(said.Joined("\nNew"), "\nNew");
  said.turns.back().answer.content = " upon a time.\n";
  EXPECT_EQ(said.Joined("there"), "there");
  said.turns.back().answer.content = "";
  EXPECT_EQ(said.Joined("there"), " there");
}

TEST(Conversation, MessagesAreWhatWasSaid) {
  Conversation said;
  said.system = "s";
  said.turns.push_back({"u", {"assistant", "a", "r", {7}}});
  said.turns.push_back({std::nullopt, {"assistant", "b", {}, {8}}});
  const std::vector<protocol::ConversationMessage> chat = {{"system", "s", {}, {}},
                                                           {"user", "u", {}, {}},
                                                           {"assistant", "a", "r", {7}},
                                                           {"assistant", "b", {}, {8}},
                                                           {"user", "n", {}, {}}};
  EXPECT_EQ(said.Messages("n"), chat);
  const std::vector<protocol::ConversationMessage> plain = {
      {"user", "u", {}, {}}, {"assistant", "a", {}, {7}}, {"assistant", "b", {}, {8}}};
  EXPECT_EQ(said.PlainMessages(std::nullopt), plain);
}

// ---------------------------------------------------------------- transcript

TEST(Transcript, ComesBackAsItWasAndIsPrivate) {
  const TempFolder folder;
  const std::string path = folder / "t.json";
  Conversation said;
  said.system = "Sei nett \xF0\x9F\xA6\x8A";
  said.turns.push_back({"a\n\"b\"", {"assistant", "c\\", "hm", {1, 2147483647}}});
  said.turns.push_back({std::nullopt, {"assistant", "", {}, {}}});
  ASSERT_TRUE(SaveTranscript(path, said, std::nullopt));
  EXPECT_EQ(ModeOf(path), 0600u);
  const auto back = LoadTranscript(path);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->system, said.system);
  EXPECT_EQ(back->Messages(std::nullopt), said.Messages(std::nullopt));
  // It may be replaced, and through a link the file that the link names.
  ASSERT_EQ(::symlink(path.c_str(), (folder / "link").c_str()), 0);
  said.turns.pop_back();
  ASSERT_TRUE(SaveTranscript(folder / "link", said, std::nullopt));
  EXPECT_EQ(LoadTranscript(path)->turns.size(), 1u);
  struct stat info = {};
  ASSERT_EQ(::lstat((folder / "link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
}

TEST(Transcript, WhatIsNoneIsRefusedAndNeverReplaced) {
  const TempFolder folder;
  const std::string path = folder / "t.json";
  const std::string head = R"({"format": "microkimi-chat-1", "messages": )";
  const std::string deep = head + std::string(100, '[') + std::string(100, ']') + "}";
  for (const std::string& text :
       {std::string("garbage"),
        std::string("[]"),
        std::string("{}"),
        std::string("\x7F"
                    "ELF\0",
                    5),
        std::string(R"({"format": 1, "messages": []})"),
        std::string(R"({"format": "microkimi-chat-2", "messages": []})"),
        std::string(R"({"format": "microkimi-chat-1"})"),
        head + "7}",
        head + "[7]}",
        deep,
        head + R"([{"role": "user", "content": "x"}]})",
        head + R"([{"role": "assistant", "content": "x"}]})",
        head + R"([{"role": "user", "content": "x"}, {"role": "user", "content": "y"},
                   {"role": "assistant", "content": "z"}]})",
        head + R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "z"},
                   {"role": "system", "content": "y"}]})",
        head + R"([{"role": "tool", "content": "x"}]})",
        head + R"([{"role": "user", "content": "x", "ids": [1]},
                   {"role": "assistant", "content": "z"}]})",
        head + R"([{"role": "user"}, {"role": "assistant", "content": "z"}]})",
        head + R"([{"role": "user", "content": "x", "more": 1},
                   {"role": "assistant", "content": "z"}]})",
        head + R"([{"role": "user", "content": "x"},
                   {"role": "assistant", "content": "z", "ids": [-1]}]})",
        head + "[{\"role\": \"user\", \"content\": \"\xFF\"}, {\"role\": \"assistant\", "
               "\"content\": \"\"}]}",
        head + R"([{"role": "user", "content": "x"}, {"role": "assistant", "cont)"}) {
    std::ofstream(path, std::ios::binary) << text;
    const auto loaded = LoadTranscript(path);
    ASSERT_FALSE(loaded) << text;
    EXPECT_EQ(loaded.error().code, protocol::ErrorCode::kIncompatible) << text;
    EXPECT_NE(loaded.error().message.find(path), std::string::npos);
    EXPECT_FALSE(loaded.error().hint.empty());
    const auto saved = SaveTranscript(path, {}, std::nullopt);
    ASSERT_FALSE(saved) << text;
    EXPECT_EQ(FileText(path), text);
  }
  EXPECT_EQ(LoadTranscript(folder / "none").error().code, protocol::ErrorCode::kNotFound);
  EXPECT_FALSE(SaveTranscript("/dev/null", {}, std::nullopt));
  EXPECT_FALSE(SaveTranscript(folder / "no/such/folder", {}, std::nullopt));
}

// ---------------------------------------------------------------- history

TEST(History, EntriesComeBackInOrderAndTheFileIsPrivate) {
  const TempFolder folder;
  const std::string path = folder / "h";
  const std::vector<std::string> entries = {"one", "two\nlines \\n", "\\", "gr\xC3\xB6\xC3\x9F"};
  {
    auto history = InputHistory::Open(path);
    ASSERT_TRUE(history) << history.error().message;
    for (const std::string& entry : entries) ASSERT_TRUE(history->Add(entry));
    ASSERT_TRUE(history->Add(entries.back()));
  }
  EXPECT_EQ(ModeOf(path), 0600u);
  EXPECT_EQ(InputHistory::Open(path)->entries(), entries);
  ::chmod(path.c_str(), 0644);
  EXPECT_EQ(InputHistory::Open(path)->entries(), entries);
  EXPECT_EQ(ModeOf(path), 0600u);
}

TEST(History, WhatIsNoTextIsLeftOut) {
  const TempFolder folder;
  const std::string path = folder / "h";
  std::ofstream(path, std::ios::binary) << "good\n\xFF\xFE\nba" << '\0' << "d\n\nlast";
  EXPECT_EQ(InputHistory::Open(path)->entries(), (std::vector<std::string>{"good", "last"}));
}

TEST(History, AFileThatIsNotOursToWriteIsRefused) {
  const TempFolder folder;
  std::ofstream(folder / "target") << "secret\n";
  ASSERT_EQ(::symlink((folder / "target").c_str(), (folder / "link").c_str()), 0);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe", "", "no/such"}) {
    const auto history = InputHistory::Open(folder / name);
    ASSERT_FALSE(history) << name;
    EXPECT_FALSE(history.error().hint.empty());
  }
  EXPECT_EQ(FileText(folder / "target"), "secret\n");
}

TEST(History, ALongFileIsCutDownToTheLatest) {
  const TempFolder folder;
  const std::string path = folder / "h";
  {
    std::ofstream file(path);
    for (size_t i = 0; i <= 2 * InputHistory::kEntries; ++i) file << "entry " << i << "\n";
  }
  auto history = InputHistory::Open(path);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->entries().size(), InputHistory::kEntries);
  EXPECT_EQ(history->entries().back(), "entry 2000");
  ASSERT_TRUE(history->Add("new"));
  const auto again = InputHistory::Open(path);
  EXPECT_EQ(again->entries().size(), InputHistory::kEntries);
  EXPECT_EQ(again->entries().back(), "new");
  std::ifstream file(path);
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(file), {}, '\n'),
            static_cast<ptrdiff_t>(InputHistory::kEntries) + 1);
}

TEST(History, ChatsAtTheSameTimeLoseNothing) {
  const TempFolder folder;
  const std::string path = folder / "h";
  {
    std::ofstream file(path);
    for (size_t i = 0; i <= 2 * InputHistory::kEntries; ++i) file << "old\n";
  }
  std::vector<std::thread> chats;
  for (int chat = 0; chat < 4; ++chat) {
    chats.emplace_back([&, chat] {
      auto history = InputHistory::Open(path);  // one of them cuts the file down
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(history->Add(std::to_string(chat) + " " + std::to_string(i)));
      }
    });
  }
  for (std::thread& chat : chats) chat.join();
  const std::string text = FileText(path);
  for (int chat = 0; chat < 4; ++chat) {
    for (int i = 0; i < 50; ++i) {
      std::ostringstream line;
      line << "\n" << chat << " " << i << "\n";
      EXPECT_NE(text.find(line.str()), std::string::npos) << line.str();
    }
  }
}

// ---------------------------------------------------------------- values

std::string SetError(const char* name, const std::string& text, protocol::RunArgs& args) {
  const ChatValue* value = FindChatValue(name);
  EXPECT_NE(value, nullptr) << name;
  const auto set = SetChatValue(*value, text, args);
  return set ? "" : set.error().message;
}

TEST(ChatValues, AreJudgedByTheProtocolAndShownAsTheyAre) {
  protocol::RunArgs args;
  EXPECT_EQ(SetError("temp", "0.7", args), "");
  EXPECT_EQ(args.temperature, 0.7);
  EXPECT_EQ(SetError("seed", "18446744073709551615", args), "");
  EXPECT_EQ(args.seed, UINT64_MAX);
  EXPECT_EQ(SetError("stop", "7", args), "");  // a text that looks like a number
  EXPECT_EQ(args.stop, std::vector<std::string>{"7"});
  EXPECT_EQ(SetError("thinking", "off", args), "");
  EXPECT_FALSE(args.thinking);
  const protocol::RunArgs before = args;
  EXPECT_NE(SetError("temp", "101", args).find("0 to 100"), std::string::npos);
  EXPECT_NE(SetError("temp", "warm", args).find("wrong type"), std::string::npos);
  EXPECT_NE(SetError("temp", "nan", args), "");
  EXPECT_NE(SetError("top-p", "0", args), "");
  EXPECT_NE(SetError("max-new", "1.5", args), "");
  EXPECT_NE(SetError("max-new", "-1", args), "");
  EXPECT_NE(SetError("precision", "q4", args), "");
  EXPECT_EQ(args, before);
  EXPECT_EQ(ShowChatValue(*FindChatValue("temp"), args), "0.7");
  for (const ChatValue& value : ChatValues()) {
    EXPECT_EQ(SetError(value.name, "default", args), "") << value.name;
  }
  protocol::RunArgs defaults;
  defaults.max_new = kChatMaxNew;
  EXPECT_EQ(args, defaults);
}

TEST(SlashCommands, CompleteNamesAndFiles) {
  EXPECT_EQ(CompleteSlashCommand("/te"), std::vector<std::string>{"/temp "});
  // show system set stats save seed stop spec spec-rosa
  EXPECT_EQ(CompleteSlashCommand("/s").size(), 9u);
  EXPECT_TRUE(CompleteSlashCommand("te").empty());
  EXPECT_TRUE(CompleteSlashCommand("//te").empty());
  const TempFolder folder;
  std::ofstream(folder / "a[1].json") << "x";
  EXPECT_EQ(CompleteSlashCommand(std::string("/load ").append(folder / "a[")),
            std::vector<std::string>{std::string("/load ").append(folder / "a[1].json")});
}

// ---------------------------------------------------------------- wide text

TEST(WideText, GoesThereAndBack) {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\xA6\x8A\xF4\x8F\xBF\xBF\n";
  const std::wstring wide = Widen(text);
  EXPECT_EQ(wide, std::wstring({L'a', 0xE4, 0x20AC, 0x1F98A, 0x10FFFF, L'\n'}));
  EXPECT_EQ(Narrow(wide), text);
  EXPECT_EQ(Widen("\xFFx"), (std::wstring{0xFFFD, L'x'}));
  EXPECT_EQ(Narrow(std::wstring{static_cast<wchar_t>(0xD800), 0x110000}),
            "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(Utf8SequenceLength('a'), 1u);
  EXPECT_EQ(Utf8SequenceLength(0xC1), 1u);
  EXPECT_EQ(Utf8SequenceLength(0xC2), 2u);
  EXPECT_EQ(Utf8SequenceLength(0xE0), 3u);
  EXPECT_EQ(Utf8SequenceLength(0xF4), 4u);
  EXPECT_EQ(Utf8SequenceLength(0xF5), 1u);
}

}  // namespace
}  // namespace mk::client
