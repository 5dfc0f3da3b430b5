// MKMEM001: packs of the reference engine are read, continued and written byte for byte.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/pack/mkmem1.h"
#include "engine/pack/pack_reader.h"
#include "tests/unit/model/golden_data.h"
#include "tests/unit/model/random_model.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/saved_state.h"
#include "tests/unit/pack/pack_bytes.h"

namespace mk::test {
namespace {

std::string GoldenPath(const std::string& name, const std::string& file) {
  return std::string(MK_TEST_DATA) + "/golden/k3/" + name + "/" + file;
}

class Mkmem1 : public testing::TestWithParam<const char*> {
 protected:
  Mkmem1() : golden_(LoadGolden("k3", GetParam())), model_(Load(golden_.model_path)) {}

  std::string Pack(const std::string& prompt) const {
    return GoldenPath(GetParam(), prompt + ".mkmem");
  }
  LoadedPack LoadOne(const std::string& path) const {
    Result<LoadedPack> pack = LoadPack(path, *model_);
    EXPECT_TRUE(pack) << pack.error().ToString();
    return pack ? std::move(*pack) : LoadedPack{};
  }
  std::string Code(const std::string& bytes) {
    const std::string path = directory_.Path("bad.mkmem");
    WriteBytes(path, bytes);
    const auto pack = LoadPack(path, *model_);
    if (pack) return "loaded";
    EXPECT_NE(pack.error().message.find(path), std::string::npos) << pack.error().message;
    return std::string(ErrorCodeName(pack.error().code));
  }
  SavePackOptions Old() const {
    SavePackOptions options;
    options.format = PackFormat::kMkmem1;
    return options;
  }

  TempDirectory directory_;
  const GoldenCase golden_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Executor> executor_ = MakeExecutor(2);
};

TEST_P(Mkmem1, ARecordedPackComesBackByteForByte) {
  for (const char* prompt : {"short", "long"}) {
    const LoadedPack pack = LoadOne(Pack(prompt));
    const std::string out = directory_.Path("out.mkmem");
    const auto saved = SavePack(out, *model_, *pack.sequence, pack.contents, Old());
    ASSERT_TRUE(saved) << saved.error().ToString();
    EXPECT_TRUE(ReadBytes(out) == ReadBytes(Pack(prompt))) << prompt;
    EXPECT_TRUE(VerifyPack(out));
  }
}

// Nothing is fed: the stored logits say the first token.
TEST_P(Mkmem1, ARecordedPackGoesOnAsRecorded) {
  for (const bool is_long : {false, true}) {
    const GoldenPrompt& prompt = is_long ? golden_.long_prompt : golden_.short_prompt;
    LoadedPack pack = LoadOne(Pack(is_long ? "long" : "short"));
    EXPECT_EQ(pack.sequence->length(), prompt.ids.size());
    std::vector<float> logits = pack.contents.logits;
    for (const int32_t expected : prompt.greedy) {
      const int32_t token = ArgMax(logits);
      ASSERT_EQ(token, expected);
      logits = Feed(*model_, *executor_, *pack.sequence, {&token, 1});
    }
  }
}

// What the engine saves after the same prompt is what the reference saved, up to rounding.
TEST_P(Mkmem1, LatentRowsAreMultipliedOut) {
  for (const Precision precision : {Precision::kExact, Precision::kQ8}) {
    const auto model = Load(golden_.model_path, precision);
    SequenceOptions options;
    options.precision = precision;
    const auto sequence = MakeSequence(*model, options);
    PackContents contents;
    contents.logits = Feed(*model, *executor_, *sequence, golden_.short_prompt.ids);
    contents.logits.erase(contents.logits.begin(),
                          contents.logits.end() - static_cast<std::ptrdiff_t>(golden_.vocab));
    const std::string out = directory_.Path("own.mkmem");
    const auto saved = SavePack(out, *model, *sequence, contents, Old());
    ASSERT_TRUE(saved) << saved.error().ToString();
    const auto own = PackReader::Open(out);
    const auto theirs = PackReader::Open(Pack("short"));
    ASSERT_TRUE(own && theirs);
    ASSERT_EQ(own->info().shape, theirs->info().shape);
    ASSERT_EQ(own->info().sections.size(), theirs->info().sections.size());
    for (size_t i = 0; i < own->info().sections.size(); ++i) {
      const PackSection& section = own->info().sections[i];
      ASSERT_EQ(section.dims, theirs->info().sections[i].dims) << i;
      const auto a = *own->ReadFloats(section);
      const auto b = *theirs->ReadFloats(theirs->info().sections[i]);
      double largest = 0, most = 0;
      for (size_t j = 0; j < a.size(); ++j) {
        largest = std::max<double>(largest, std::abs(b[j]));
        most = std::max<double>(most, std::abs(a[j] - b[j]));
      }
      // Bytes are lossy; a router that flips moves a layer. Rows are of the right size all the
      // same.
      EXPECT_LE(most, (precision == Precision::kExact ? 1e-4 : 0.5) * largest)
          << SectionTypeName(section.type) << " of layer " << section.layer;
    }
  }
}

TEST_P(Mkmem1, TheDescriptionIsThatOfTheFile) {
  const auto info = DescribePack(Pack("short"));
  ASSERT_TRUE(info) << info.error().ToString();
  EXPECT_EQ(info->format, PackFormat::kMkmem1);
  EXPECT_EQ(info->shape.layers, golden_.layers);
  EXPECT_EQ(info->shape.hidden, golden_.hidden);
  EXPECT_EQ(info->shape.vocab, golden_.vocab);
  EXPECT_TRUE(info->has_logits());
  EXPECT_FALSE(info->has_tokens());
  EXPECT_TRUE(info->fingerprint.empty());
}

TEST_P(Mkmem1, TornAndDamagedPacksAreRefused) {
  const std::string good = ReadBytes(Pack("short"));
  ASSERT_EQ(Code(good), "loaded");
  // Bytes behind the logits are ignored, as the reference does.
  EXPECT_EQ(Code(good + "more"), "loaded");
  for (size_t size = 8; size < good.size(); size += 1 + size / 9) {
    EXPECT_EQ(Code(good.substr(0, size)), "corrupt") << size;
    EXPECT_FALSE(DescribePack(directory_.Path("bad.mkmem"))) << size;
  }
  EXPECT_EQ(Code(good.substr(0, good.size() - 1)), "corrupt");
  EXPECT_FALSE(DescribePack(directory_.Path("bad.mkmem")));
  const auto with = [&](size_t at, uint32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  };
  EXPECT_EQ(Code(with(8, ~0u)), "corrupt");      // layers
  EXPECT_EQ(Code(with(12, 1)), "incompatible");  // hidden
  EXPECT_EQ(Code(with(16, 7)), "corrupt");       // heads: the matrices are too large
  EXPECT_EQ(Code(with(20, ~0u)), "corrupt");     // dim
  EXPECT_EQ(Code(with(24, golden_.vocab > 2 ? 2 : 3)), "corrupt");
  std::string bytes = good;
  bytes[28] = 2;  // kind of the first layer
  EXPECT_EQ(Code(bytes), "corrupt");
  bytes = good;
  bytes[28 + golden_.layers] ^= 1;  // tag of the first layer
  EXPECT_EQ(Code(bytes), "corrupt");
  EXPECT_EQ(Code(with(29 + golden_.layers, ~0u)), "corrupt");  // count of the first vector
  EXPECT_EQ(Code(with(29 + golden_.layers + 4, 0x7fc00000)), "corrupt");  // a value: NaN
}

TEST_P(Mkmem1, PacksOfOtherShapesAreRefused) {
  const std::string other = GetParam() == std::string("k3a") ? "k3b" : "k3a";
  EXPECT_EQ(Code(ReadBytes(GoldenPath(other, "short.mkmem"))), "incompatible");
  const RandomModel dsv4(Kind::kDsv4);
  const auto pack = LoadPack(Pack("short"), *dsv4);
  ASSERT_FALSE(pack);
  EXPECT_EQ(pack.error().code, ErrorCode::kIncompatible);
  const auto saved =
      SavePack(directory_.Path("d.mkmem"), *dsv4, *MakeSequence(*dsv4), PackContents{}, Old());
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, ErrorCode::kUnsupported);
}

// A pack of the reference goes on in our own format: expanded rows and all.
TEST_P(Mkmem1, ARecordedPackSavedInTheNewFormatGoesOnAlike) {
  LoadedPack old = LoadOne(Pack("short"));
  const std::string path = directory_.Path("new.mkmem");
  ASSERT_TRUE(SavePack(path, *model_, *old.sequence, old.contents));
  LoadedPack pack = LoadOne(path);
  EXPECT_TRUE(pack.info.key.options.expanded_kv);
  EXPECT_TRUE(SameBits(pack.contents.logits, old.contents.logits));
  const std::vector<int32_t> next = RandomTokens(20, golden_.vocab, 1);
  EXPECT_TRUE(SameBits(Feed(*model_, *executor_, *pack.sequence, next),
                       Feed(*model_, *executor_, *old.sequence, next)));
}

INSTANTIATE_TEST_SUITE_P(Models, Mkmem1, testing::ValuesIn(kK3Cases));

}  // namespace
}  // namespace mk::test
