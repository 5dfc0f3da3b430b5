// Packs that were torn, damaged or made up: refused with the reason, whatever they say.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/pack/pack_diff.h"
#include "engine/pack/pack_math.h"
#include "tests/unit/model/random_model.h"
#include "tests/unit/pack/pack_bytes.h"

namespace mk::test {
namespace {

// Fields of the header and of an entry of the table (docs/packs.md).
constexpr size_t kArchitecture = 8, kFlags = 12, kModel = 16, kLength = 80, kProfile = 96,
                 kRewindable = 100, kSections = 104, kReserved = 108, kTable = 112,
                 kFileBytes = 120;
constexpr size_t kType = 0, kLayer = 2, kElement = 4, kCompression = 5, kOffset = 8, kBytes = 16,
                 kDims = 24;

class Hostile : public testing::TestWithParam<Kind> {
 protected:
  Hostile() : model_(GetParam()) {
    const std::unique_ptr<Sequence> sequence = MakeSequence(*model_);
    PackContents contents;
    contents.tokens = RandomTokens(70, model_->info().vocab, 1);
    contents.logits = Feed(*model_, *MakeExecutor(1), *sequence, contents.tokens);
    contents.logits.resize(model_->info().vocab);
    contents.lineage = "{}";
    Result<PackInfo> info = SavePack(path_, *model_, *sequence, contents);
    EXPECT_TRUE(info);
    info_ = *info;
    good_ = ReadBytes(path_);
  }

  // What loading these bytes says: the code, or "loaded". Looking at them must be as safe.
  std::string Code(const std::string& bytes) {
    WriteBytes(path_, bytes);
    (void)DescribePack(path_);
    (void)VerifyPack(path_);
    const auto pack = LoadPack(path_, *model_);
    if (pack) return "loaded";
    EXPECT_NE(pack.error().message.find(path_), std::string::npos) << pack.error().message;
    message_ = pack.error().message;
    return std::string(ErrorCodeName(pack.error().code));
  }
  size_t IndexOf(uint16_t type) const {
    for (size_t i = 0; i < info_.sections.size(); ++i) {
      if (info_.sections[i].type == type && info_.sections[i].bytes > 0) return i;
    }
    ADD_FAILURE() << "no section of type " << type;
    return 0;
  }
  size_t IndexOf(PackSectionType type) const { return IndexOf(static_cast<uint16_t>(type)); }
  size_t FirstState() const { return 3; }

  TempDirectory directory_;
  const std::string path_ = directory_.Path("a.mkmem");
  RandomModel model_;
  PackInfo info_;
  std::string good_;
  std::string message_;
};

TEST_P(Hostile, TheUndamagedPackLoads) {
  EXPECT_EQ(Code(good_), "loaded");
}

TEST_P(Hostile, TornPacksAreRefused) {
  for (size_t size = 0; size < good_.size(); size += 1 + size / 7) {
    const std::string code = Code(good_.substr(0, size));
    EXPECT_EQ(code, size < 5 ? "invalid_argument" : size < 8 ? "unsupported" : "corrupt") << size;
  }
  EXPECT_EQ(Code(good_.substr(0, good_.size() - 1)), "corrupt");
  EXPECT_EQ(Code(good_ + "x"), "corrupt");
}

TEST_P(Hostile, ABitFlippedAnywhereIsSeen) {
  std::mt19937_64 random(3);
  std::vector<size_t> places;
  for (size_t at = 8; at < 600; ++at) places.push_back(at);
  for (int i = 0; i < 100; ++i) places.push_back(random() % good_.size());
  for (const PackSection& section : info_.sections) {
    if (section.bytes == 0) continue;
    places.push_back(section.offset);
    places.push_back(section.offset + section.bytes - 1);
  }
  const size_t table = kPackHeaderBytes + info_.sections.size() * kPackEntryBytes;
  for (const size_t at : places) {
    // Bytes between sections mean nothing.
    bool covered = at < kPackHeaderBytes || (at >= 192 - 48 && at < table);
    covered &= at < kPackHeaderBytes || at >= AlignPackOffset(kPackHeaderBytes);
    for (const PackSection& section : info_.sections) {
      covered |= at >= section.offset && at < section.offset + section.bytes;
    }
    if (!covered) continue;
    std::string bytes = good_;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    EXPECT_NE(Code(bytes), "loaded") << "byte " << at;
    EXPECT_FALSE(VerifyPack(path_)) << "byte " << at;
  }
}

TEST_P(Hostile, ForeignAndNewerFilesAreTold) {
  EXPECT_EQ(Code("hello, this is a text file and no pack at all"), "invalid_argument");
  EXPECT_EQ(Code(""), "invalid_argument");
  std::string newer = good_;
  newer.replace(0, 8, "MKMEM003");
  EXPECT_EQ(Code(newer), "unsupported");
  EXPECT_NE(message_.find("another version"), std::string::npos);
  EXPECT_EQ(LoadPack(directory_.Path("none"), *model_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(LoadPack(directory_.Path("."), *model_).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(Hostile, HeadersThatLieAreRefused) {
  EXPECT_EQ(Code(WithHeaderField(good_, kArchitecture, uint32_t{3})), "unsupported");
  EXPECT_EQ(Code(WithHeaderField(good_, kFlags, uint32_t{0x100})), "unsupported");
  EXPECT_EQ(Code(WithHeaderField(good_, kModel, 'g')), "corrupt");
  EXPECT_EQ(Code(WithHeaderField(good_, kModel, good_[kModel] == '0' ? '1' : '0')), "incompatible");
  EXPECT_EQ(Code(WithHeaderField(good_, kProfile, uint32_t{3})), "unsupported");
  EXPECT_EQ(Code(WithHeaderField(good_, kProfile, uint32_t{0x400})), "unsupported");
  EXPECT_EQ(Code(WithHeaderField(good_, kReserved, uint32_t{1})), "corrupt");
  EXPECT_EQ(Code(WithHeaderField(good_, kFileBytes, uint64_t{good_.size() + 1})), "corrupt");
  for (const uint64_t length : {uint64_t{0}, uint64_t{69}, uint64_t{71}, uint64_t{1} << 32,
                                uint64_t{1} << 62, ~uint64_t{0}}) {
    EXPECT_EQ(Code(WithHeaderField(good_, kLength, length)), "corrupt") << length;
  }
  EXPECT_EQ(Code(WithHeaderField(good_, kRewindable, uint32_t{17})), "corrupt");
  for (const uint32_t sections : {0u, 1u, 1u << 16, (1u << 16) + 1, ~0u}) {
    EXPECT_EQ(Code(WithHeaderField(good_, kSections, sections)), "corrupt") << sections;
  }
  for (const uint64_t table : {uint64_t{0}, uint64_t{good_.size()}, ~uint64_t{0}}) {
    EXPECT_EQ(Code(WithHeaderField(good_, kTable, table)), "corrupt") << table;
  }
}

TEST_P(Hostile, TablesThatLieAreRefused) {
  const size_t state = FirstState();
  const PackSection& section = info_.sections[state];
  for (const uint64_t offset : {uint64_t{0}, section.offset - 64, section.offset + 64,
                                uint64_t{good_.size()}, ~uint64_t{0}}) {
    EXPECT_EQ(Code(WithTableField(good_, state, kOffset, offset)), "corrupt") << offset;
  }
  for (const uint64_t bytes :
       {uint64_t{0}, section.bytes - 4, section.bytes + 4, uint64_t{good_.size()}, ~uint64_t{0}}) {
    EXPECT_EQ(Code(WithTableField(good_, state, kBytes, bytes)), "corrupt") << bytes;
  }
  for (const uint32_t dim : {0u, section.dims[0] + 1, ~0u}) {
    EXPECT_EQ(Code(WithTableField(good_, state, kDims, dim)), "corrupt") << dim;
  }
  // Three dimensions whose product overflows.
  const uint32_t huge[3] = {1u << 31, 1u << 31, 4};
  EXPECT_EQ(Code(WithTableField(good_, state, kDims, std::as_bytes(std::span(huge)))), "corrupt");
  EXPECT_EQ(Code(WithTableField(good_, state, kLayer, uint16_t{4000})), "corrupt");
  EXPECT_EQ(Code(WithTableField(good_, state, kElement, uint8_t{9})), "unsupported");
  EXPECT_EQ(Code(WithTableField(good_, state, kCompression, uint8_t{1})), "unsupported");
  // An array less, under a type that nobody knows; and one that must be known.
  EXPECT_EQ(Code(WithTableField(good_, state, kType, uint16_t{999})), "corrupt");
  EXPECT_EQ(Code(WithTableField(good_, state, kType, uint16_t{0x8001})), "unsupported");
}

TEST_P(Hostile, UnknownSectionsThatDoNotMatterAreSkipped) {
  const size_t lineage = IndexOf(PackSectionType::kLineage);
  EXPECT_EQ(Code(WithTableField(good_, lineage, kType, uint16_t{999})), "loaded");
}

TEST_P(Hostile, ContentsThatLieAreRefused) {
  const size_t tokens = IndexOf(PackSectionType::kTokens);
  EXPECT_EQ(Code(WithSectionByte(good_, info_, tokens, 3, 0x7f)), "corrupt");
  EXPECT_NE(message_.find("vocabulary"), std::string::npos);
  const size_t logits = IndexOf(PackSectionType::kLogits);
  const std::string nan = WithSectionByte(good_, info_, logits, 3, 0x7f);
  EXPECT_EQ(Code(WithSectionByte(nan, info_, logits, 2, 0xff)), "corrupt");
  // Two sections of tokens; tokens that the flags deny; tokens of a state that is no text's.
  EXPECT_EQ(Code(WithTableField(good_, logits, kType, uint16_t{2})), "corrupt");
  EXPECT_EQ(Code(WithHeaderField(good_, kFlags, uint32_t{kPackLogits})), "corrupt");
  EXPECT_EQ(Code(WithHeaderField(good_, kFlags, uint32_t{kPackTokens})), "corrupt");
  const uint32_t mixed = kPackTokens | kPackLogits | kPackExperimental;
  EXPECT_EQ(Code(WithHeaderField(good_, kFlags, mixed)), "corrupt");
  // Tokens of another number of positions.
  const uint32_t fewer[] = {69, 1, 1};
  const std::string short_list =
      WithTableField(good_, tokens, kDims, std::as_bytes(std::span(fewer)));
  EXPECT_EQ(Code(WithTableField(short_list, tokens, kBytes, uint64_t{69 * 4})), "corrupt");
  // A state with values that no state has.
  const size_t state = FirstState();
  const size_t last = info_.sections[state].bytes;
  const std::string bad = WithSectionByte(good_, info_, state, last - 1, 0x7f);
  EXPECT_EQ(Code(WithSectionByte(bad, info_, state, last - 2, 0xff)), "corrupt");
  EXPECT_NE(message_.find("no state has"), std::string::npos) << message_;
}

// Any bytes, and any number of damaged places in a good pack with sound digests in the header.
TEST_P(Hostile, RandomDamageNeverGetsThrough) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes = good_;
    for (int i = 0; i < 1 + round % 5; ++i) {
      bytes = WithHeaderField(bytes, 8 + random() % 120, static_cast<uint8_t>(random()));
    }
    const std::string code = Code(bytes);
    // Creation time, state id and flags are not held against anything.
    if (code == "loaded") continue;
    EXPECT_TRUE(code == "corrupt" || code == "unsupported" || code == "incompatible" ||
                code == "context_overflow")
        << code;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Hostile, testing::Values(Kind::kK3, Kind::kDsv4));

}  // namespace
}  // namespace mk::test
