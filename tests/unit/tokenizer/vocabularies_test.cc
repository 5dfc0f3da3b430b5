// What the vocabularies have in common, and what sets them apart.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/tokenizer/byte_tokenizer.h"
#include "engine/tokenizer/kimi_tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8_stream.h"
#include "tests/unit/tokenizer/test_vocab.h"

namespace mk {
namespace {

using test::BytesAnd;
using test::Table;
using Ids = std::vector<int32_t>;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

TokenizerPtr Take(Result<TokenizerPtr> made) {
  EXPECT_TRUE(made) << made.error().ToString();
  return *made;
}

SpecialTokens SpecialsFrom(int32_t first) {
  return {first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6, first + 7};
}

VocabJson Vocab(VocabFormat format, Ids full_ids) {
  VocabJson vocab;
  vocab.format = format;
  vocab.specials = SpecialsFrom(static_cast<int32_t>(full_ids.size()));
  vocab.vocab_size = full_ids.size() + 8;
  vocab.full_ids = std::move(full_ids);
  return vocab;
}

Ids Range(int32_t end) {
  Ids ids;
  for (int32_t i = 0; i < end; ++i) ids.push_back(i);
  return ids;
}

const std::vector<std::string> kMerges = {"he", "ll", "hell", "hello", " w", "or"};

TokenizerPtr Full() {
  return Take(MakeFullTokenizer(Table(BytesAnd(kMerges))));
}

TokenizerPtr Own() {
  return Take(
      MakeVocabTokenizer(Table(BytesAnd(kMerges)), Vocab(VocabFormat::kOwn, Range(262)), "ranks"));
}

// Keeps the bytes and " w"; drops the other merges.
TokenizerPtr Remap(VocabFormat format) {
  Ids kept = Range(256);
  kept.push_back(256);  // he
  kept.push_back(260);  // " w"
  return Take(MakeVocabTokenizer(Table(BytesAnd(kMerges)), Vocab(format, kept), "ranks"));
}

std::vector<TokenizerPtr> All() {
  return {Full(), Own(), Remap(VocabFormat::kRemap), Take(MakeByteTokenizer(512)),
          Take(MakeByteTokenizer(163840))};
}

std::string RandomText(std::mt19937& random) {
  std::string text;
  const std::vector<std::string> parts = {"hello", " w",   "or", "ld",    "é",
                                          "你",    "😀",    "\n", "\0x",   "<|open|>",
                                          "[BOS]", "1234", "'s", "\u0301"};
  for (size_t n = random() % 12; n > 0; --n) text += parts[random() % parts.size()];
  return text;
}

TEST(Vocabularies, DecodeUndoesEncode) {
  std::mt19937 random(11);
  for (const TokenizerPtr& tokenizer : All()) {
    for (int round = 0; round < 300; ++round) {
      const std::string text = RandomText(random);
      const Result<EncodedText> encoded = tokenizer->EncodeText(text);
      ASSERT_TRUE(encoded);
      EXPECT_EQ(tokenizer->Decode(encoded->ids), text) << tokenizer->kind();
      EXPECT_EQ(encoded->unknown, 0u);
    }
  }
}

TEST(Vocabularies, NoTextBecomesASpecialToken) {
  const SpecialTokens full = KimiSpecials();
  for (const TokenizerPtr& tokenizer : All()) {
    for (int32_t id = 163584; id < 163840; ++id) {
      const Result<EncodedText> encoded =
          tokenizer->EncodeText(std::string("x").append(KimiSpecialName(id)).append(" y"));
      ASSERT_TRUE(encoded);
      for (const int32_t token : encoded->ids) {
        ASSERT_FALSE(tokenizer->IsSpecial(token)) << tokenizer->kind();
      }
    }
    EXPECT_TRUE(tokenizer->IsSpecial(tokenizer->specials().open));
    EXPECT_EQ(tokenizer->TokenName(tokenizer->specials().open), KimiSpecialName(full.open));
    EXPECT_EQ(tokenizer->TokenBytes(tokenizer->specials().open), "");
  }
}

TEST(Vocabularies, IdsOutsideTheVocabularyHaveNoText) {
  for (const TokenizerPtr& tokenizer : All()) {
    for (const int32_t id :
         {-1, static_cast<int32_t>(tokenizer->vocab_size()), INT32_MIN, INT32_MAX}) {
      EXPECT_EQ(tokenizer->TokenBytes(id), "");
      EXPECT_FALSE(tokenizer->IsSpecial(id));
      EXPECT_NE(tokenizer->TokenName(id), "");
    }
  }
}

TEST(Vocabularies, TextThatIsNotUtf8IsRefused) {
  for (const TokenizerPtr& tokenizer : All()) {
    const Result<EncodedText> encoded = tokenizer->EncodePrompt("a\xFF");
    ASSERT_FALSE(encoded);
    EXPECT_EQ(encoded.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(FullVocabulary, HasNoBeginningOfTextAndStopsAtTheEndOfAMessage) {
  const TokenizerPtr full = Full();
  EXPECT_EQ(full->vocab_size(), 163840u);
  EXPECT_EQ(full->EncodePrompt("hello world")->ids, (Ids{259, 260, 261, 'l', 'd'}));
  EXPECT_EQ(full->EncodePrompt("")->ids, Ids{});
  const auto stops = full->prompt_stop_ids();
  EXPECT_NE(std::find(stops.begin(), stops.end(), 163586), stops.end());
  EXPECT_EQ(full->TokenName(163600), "<|reserved_token_163600|>");
  EXPECT_EQ(full->TokenName(163649), "<osagent_mode>");
  EXPECT_EQ(full->TokenBytes(200000 % 163584), "");  // an id that this small rank file leaves out
  EXPECT_EQ(full->default_dialect(), ChatDialect::kK3);
}

TEST(OwnVocabulary, IdsAreRanksBehindABeginningOfText) {
  const TokenizerPtr own = Own();
  EXPECT_EQ(own->EncodePrompt("hello world")->ids, (Ids{262, 259, 260, 261, 'l', 'd'}));
  EXPECT_EQ(own->EncodePrompt("")->ids, Ids{262});
  EXPECT_EQ(own->prompt_stop_ids()[0], own->specials().eos);
  EXPECT_EQ(own->chat_stop_ids()[0], own->specials().end_of_msg);
  EXPECT_EQ(own->default_dialect(), ChatDialect::kNanoSft);  // as the test's vocabulary says
}

TEST(RemapVocabulary, OldOnesLoseDroppedTokensAndNewOnesSpellThem) {
  const Ids world = {257, 'o', 'r', 'l', 'd'};
  const Result<EncodedText> old = Remap(VocabFormat::kLegacyRemap)->EncodeText("hello world");
  ASSERT_TRUE(old);
  const int32_t unk = 258 + 6;
  EXPECT_EQ(old->ids, (Ids{unk, 257, unk, 'l', 'd'}));
  EXPECT_EQ(old->unknown, 2u);
  const Result<EncodedText> fresh = Remap(VocabFormat::kRemap)->EncodeText("hello world");
  ASSERT_TRUE(fresh);
  EXPECT_EQ(fresh->ids, (Ids{256, 'l', 'l', 'o', 257, 'o', 'r', 'l', 'd'}));
  EXPECT_EQ(fresh->unknown, 0u);
}

TEST(RemapVocabulary, WithoutAllBytesDroppedTokensAreUnknown) {
  Ids kept = Range(255);
  kept.push_back(256);
  const TokenizerPtr remap =
      Take(MakeVocabTokenizer(Table(BytesAnd(kMerges)), Vocab(VocabFormat::kRemap, kept), "ranks"));
  EXPECT_EQ(remap->EncodeText("hello")->unknown, 1u);
}

TEST(RemapVocabulary, CutVocabulariesHoldTheirSpecialsInTheTable) {
  VocabJson vocab = Vocab(VocabFormat::kRemap, Range(256));
  for (const int32_t full : {163584, 163585, 163587, 163588, 163589, 163586, 163838, 163602}) {
    vocab.full_ids.push_back(full);
  }
  const TokenizerPtr cut = Take(MakeVocabTokenizer(Table(BytesAnd({})), vocab, "ranks"));
  EXPECT_EQ(cut->vocab_size(), 264u);
  EXPECT_TRUE(cut->IsSpecial(263));
  EXPECT_EQ(cut->TokenName(261), "<|end_of_msg|>");
  EXPECT_EQ(cut->EncodeText("ab")->ids, (Ids{'a', 'b'}));
}

TEST(RemapVocabulary, ARankFileThatIsTooSmallIsRefused) {
  const Result<TokenizerPtr> made = MakeVocabTokenizer(
      Table(BytesAnd({})), Vocab(VocabFormat::kLegacyRemap, {1, 2, 300}), "small.tiktoken");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kIncompatible);
  EXPECT_NE(made.error().message.find("300"), std::string::npos);
}

TEST(OwnVocabulary, ARankFileOfAnotherSizeIsRefused) {
  const Result<TokenizerPtr> made =
      MakeVocabTokenizer(Table(BytesAnd({"ab"})), Vocab(VocabFormat::kOwn, Range(256)), "r");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kIncompatible);
}

TEST(ByteTokenizer, IdsAreBytesAndSpecialsComeLast) {
  const TokenizerPtr bytes = Take(MakeByteTokenizer(512));
  EXPECT_EQ(bytes->EncodePrompt("hé")->ids, (Ids{504, 'h', 0xC3, 0xA9}));
  EXPECT_EQ(bytes->specials().pad, 511);
  EXPECT_EQ(bytes->TokenBytes(300), "<|300|>");
  EXPECT_EQ(bytes->Decode(Ids{0xC3, 0xA9, 504, 300, 0xC3}), "é<|300|>\uFFFD");
  EXPECT_EQ(Take(MakeByteTokenizer(163840))->specials().end_of_msg, 163586);
  EXPECT_EQ(Take(MakeByteTokenizer(264))->specials().bos, 256);
  EXPECT_FALSE(MakeByteTokenizer(263));
  EXPECT_FALSE(MakeByteTokenizer(size_t{1} << 40));
}

TEST(Vocabularies, StreamedTextEqualsTheDecodedWhole) {
  std::mt19937 random(2);
  for (const TokenizerPtr& tokenizer : All()) {
    const auto size = static_cast<uint32_t>(tokenizer->vocab_size());
    for (int round = 0; round < 500; ++round) {
      Ids ids;
      for (size_t n = random() % 20; n > 0; --n) {
        ids.push_back(static_cast<int32_t>(random() % 4 == 0 ? random() % size : random() % 256));
      }
      Utf8Stream stream;
      std::string text;
      for (const int32_t id : ids) {
        const std::string_view bytes = tokenizer->TokenBytes(id);
        const std::string piece = bytes.empty() ? stream.Break() : stream.Push(bytes);
        ASSERT_TRUE(DecodeUtf8(piece));
        text += piece;
      }
      ASSERT_EQ(text + stream.Break(), tokenizer->Decode(ids));
    }
  }
}

}  // namespace
}  // namespace mk
