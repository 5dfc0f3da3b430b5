// Packs in the default format: what is saved is what goes on.

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/unit/model/random_model.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/saved_state.h"
#include "tests/unit/pack/pack_bytes.h"

namespace mk::test {
namespace {

class Pack : public testing::TestWithParam<std::tuple<Kind, Precision>> {
 protected:
  Pack() : model_(std::get<0>(GetParam()), precision()) {}

  static Precision precision() { return std::get<1>(GetParam()); }
  std::string Path(const std::string& name = "a.mkmem") const { return directory_.Path(name); }
  std::unique_ptr<Sequence> Make() const {
    SequenceOptions options;
    options.precision = precision();
    return MakeSequence(*model_, options);
  }
  // Greedy tokens after `logits`, which become those after the last one.
  std::vector<int32_t> Greedy(Sequence& sequence, std::vector<float>& logits, size_t count) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < count; ++i) {
      tokens.push_back(ArgMax(logits));
      logits = Feed(*model_, *executor_, sequence, {&tokens.back(), 1});
    }
    return tokens;
  }
  std::vector<float> LastRow(const std::vector<float>& logits) const {
    return {logits.end() - static_cast<std::ptrdiff_t>(model_->info().vocab), logits.end()};
  }
  PackInfo Save(const Sequence& sequence, const PackContents& contents,
                const std::string& name = "a.mkmem") const {
    Result<PackInfo> saved = SavePack(Path(name), *model_, sequence, contents);
    EXPECT_TRUE(saved) << saved.error().ToString();
    return saved ? *saved : PackInfo{};
  }
  LoadedPack Load(const std::string& name = "a.mkmem") const {
    Result<LoadedPack> pack = LoadPack(Path(name), *model_);
    EXPECT_TRUE(pack) << pack.error().ToString();
    return pack ? std::move(*pack) : LoadedPack{};
  }

  TempDirectory directory_;
  RandomModel model_;
  std::unique_ptr<Executor> executor_ = MakeExecutor(2);
};

// Saved at a random point, loaded, continued: ids, logits and the bytes of a final pack are those
// of the uninterrupted run; also when the one that was saved is a copy whose twin has gone on.
TEST_P(Pack, GoingOnFromAPackEqualsGoingOn) {
  std::mt19937 random(11);
  for (int round = 0; round < 8; ++round) {
    const std::vector<int32_t> prompt =
        RandomTokens(1 + random() % 140, model_->info().vocab, static_cast<uint32_t>(round));
    const std::unique_ptr<Sequence> sequence = Make();
    PackContents contents;
    contents.logits = LastRow(Feed(*model_, *executor_, *sequence, prompt));
    contents.tokens = prompt;
    const auto before = Greedy(*sequence, contents.logits, random() % 20);
    contents.tokens.insert(contents.tokens.end(), before.begin(), before.end());
    Result<std::unique_ptr<Sequence>> copy = sequence->Clone();
    ASSERT_TRUE(copy);
    PackContents rest = contents;
    const auto uninterrupted = Greedy(*sequence, rest.logits, 25);
    rest.tokens.insert(rest.tokens.end(), uninterrupted.begin(), uninterrupted.end());
    const PackInfo whole = Save(*sequence, rest, "whole.mkmem");

    Save(**copy, contents);
    LoadedPack pack = Load();
    EXPECT_EQ(pack.contents.tokens, contents.tokens);
    EXPECT_TRUE(SameBits(pack.contents.logits, contents.logits));
    EXPECT_EQ(Greedy(*pack.sequence, pack.contents.logits, 25), uninterrupted);
    EXPECT_TRUE(SameBits(pack.contents.logits, rest.logits));
    pack.contents.tokens = rest.tokens;
    const PackInfo resumed = Save(*pack.sequence, pack.contents, "resumed.mkmem");
    EXPECT_EQ(resumed.state_id, whole.state_id);
    ASSERT_EQ(resumed.sections.size(), whole.sections.size());
    for (size_t i = 0; i < whole.sections.size(); ++i) {
      EXPECT_EQ(resumed.sections[i].digest, whole.sections[i].digest) << i;
    }
  }
}

TEST_P(Pack, ADescriptionSaysWhatIsInThePack) {
  const std::unique_ptr<Sequence> sequence = Make();
  PackContents contents;
  contents.tokens = RandomTokens(70, model_->info().vocab, 1);
  contents.logits = LastRow(Feed(*model_, *executor_, *sequence, contents.tokens));
  contents.lineage = R"({"operation":"prefill"})";
  const PackInfo saved = Save(*sequence, contents);
  const Result<PackInfo> info = DescribePack(Path());
  ASSERT_TRUE(info) << info.error().ToString();
  EXPECT_EQ(info->format, PackFormat::kMkmem2);
  EXPECT_EQ(info->architecture, model_->info().architecture);
  EXPECT_EQ(info->fingerprint, model_->info().fingerprint);
  EXPECT_EQ(info->state_id, saved.state_id);
  EXPECT_EQ(info->state_id.size(), 64u);
  EXPECT_EQ(info->key.length, 70u);
  EXPECT_EQ(info->key.rewindable, sequence->rewindable());
  EXPECT_EQ(info->key.options.precision, precision());
  EXPECT_TRUE(info->key.options.chunked_prefill);
  EXPECT_FALSE(info->key.options.expanded_kv);
  EXPECT_GT(info->created_ns, 0);
  EXPECT_TRUE(info->has_tokens());
  EXPECT_TRUE(info->has_logits());
  EXPECT_FALSE(info->experimental());
  EXPECT_EQ(info->file_bytes, ReadBytes(Path()).size());
  EXPECT_EQ(info->sections.size(), saved.sections.size());
  EXPECT_EQ(Load().contents.lineage, contents.lineage);
  EXPECT_TRUE(VerifyPack(Path()));
}

TEST_P(Pack, TokensAndLogitsMayBeUnknown) {
  const std::unique_ptr<Sequence> sequence = Make();
  const std::vector<int32_t> tokens = RandomTokens(10, model_->info().vocab, 2);
  Feed(*model_, *executor_, *sequence, tokens);
  Save(*sequence, {});
  const LoadedPack pack = Load();
  EXPECT_FALSE(pack.info.has_tokens());
  EXPECT_FALSE(pack.info.has_logits());
  EXPECT_TRUE(pack.contents.tokens.empty());
  EXPECT_TRUE(pack.contents.logits.empty());
  EXPECT_EQ(pack.sequence->length(), 10u);
}

TEST_P(Pack, StateIdsNameStates) {
  const std::vector<int32_t> tokens = RandomTokens(10, model_->info().vocab, 3);
  const auto id = [&](size_t count, const std::string& lineage) {
    const std::unique_ptr<Sequence> sequence = Make();
    Feed(*model_, *executor_, *sequence, std::span(tokens).first(count));
    return Save(*sequence, {{}, {}, lineage}).state_id;
  };
  EXPECT_EQ(id(10, ""), id(10, "{}"));
  EXPECT_NE(id(10, ""), id(9, ""));
}

TEST_P(Pack, ContentsThatAreNotTheSequencesAreRefused) {
  const std::unique_ptr<Sequence> sequence = Make();
  const std::vector<int32_t> tokens = RandomTokens(10, model_->info().vocab, 4);
  Feed(*model_, *executor_, *sequence, tokens);
  PackContents contents;
  contents.tokens.assign(9, 0);
  const auto refused = [&] {
    const auto saved = SavePack(Path(), *model_, *sequence, contents);
    return !saved && saved.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused());
  contents.tokens.clear();
  contents.logits.assign(model_->info().vocab + 1, 0.0f);
  EXPECT_TRUE(refused());
  EXPECT_EQ(directory_.Files(), 0u);
}

TEST_P(Pack, OnlyPacksAreReplacedAndOnlyWhenAllowed) {
  const std::unique_ptr<Sequence> sequence = Make();
  WriteBytes(Path("notes.txt"), "do not lose me");
  const auto saved = SavePack(Path("notes.txt"), *model_, *sequence, {});
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ReadBytes(Path("notes.txt")), "do not lose me");

  Save(*sequence, {});
  SavePackOptions keep;
  keep.replace = false;
  EXPECT_FALSE(SavePack(Path(), *model_, *sequence, {}, keep));
  EXPECT_TRUE(SavePack(Path(), *model_, *sequence, {}));
  // A torn pack is one too.
  WriteBytes(Path(), ReadBytes(Path()).substr(0, 300));
  EXPECT_TRUE(SavePack(Path(), *model_, *sequence, {}));
  EXPECT_TRUE(LoadPack(Path(), *model_));
  EXPECT_EQ(directory_.Files(), 2u);
}

TEST_P(Pack, APackIsForItsOwnerAlone) {
  Save(*Make(), {});
  struct stat info {};
  ASSERT_EQ(::stat(Path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST_P(Pack, OtherModelsPrecisionsAndLimitsAreRefused) {
  const std::unique_ptr<Sequence> sequence = Make();
  const std::vector<int32_t> tokens = RandomTokens(20, model_->info().vocab, 5);
  Feed(*model_, *executor_, *sequence, tokens);
  Save(*sequence, {});
  const auto code = [&](const Model& model, LoadPackOptions options = {}) {
    const auto pack = LoadPack(Path(), model, options);
    if (pack) return std::string("loaded");
    EXPECT_NE(pack.error().message.find(Path()), std::string::npos) << pack.error().message;
    return std::string(ErrorCodeName(pack.error().code));
  };
  // The same shapes with other weights, and another architecture.
  const Kind kind = std::get<0>(GetParam());
  EXPECT_EQ(code(*RandomModel(kind, precision(), 6)), "incompatible");
  EXPECT_EQ(code(*RandomModel(kind == Kind::kK3 ? Kind::kDsv4 : Kind::kK3, precision())),
            "incompatible");
  LoadPackOptions options;
  options.precision = precision() == Precision::kQ8 ? Precision::kExact : Precision::kQ8;
  EXPECT_EQ(code(*model_, options), "incompatible");
  options.precision = precision();
  EXPECT_EQ(code(*model_, options), "loaded");
  options.max_tokens = 19;
  EXPECT_EQ(code(*model_, options), "context_overflow");
}

// Needs the right to mount.
TEST_P(Pack, AFullDiskLosesNothing) {
  const std::string disk = Path("disk");
  ASSERT_EQ(::mkdir(disk.c_str(), 0700), 0);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "only root may mount a small disk";
  }
  struct Unmount {
    const std::string& disk;
    ~Unmount() { EXPECT_EQ(::umount(disk.c_str()), 0); }
  } const unmount{disk};
  const std::unique_ptr<Sequence> sequence = Make();
  const std::vector<int32_t> tokens = RandomTokens(5, model_->info().vocab, 6);
  Feed(*model_, *executor_, *sequence, tokens);
  const std::string path = disk + "/a.mkmem";
  const auto first = SavePack(path, *model_, *sequence, {});
  ASSERT_TRUE(first) << first.error().ToString();
  const std::string before = ReadBytes(path);
  WriteBytes(disk + "/fill", std::string(size_t{4} << 20, 'x'));
  Feed(*model_, *executor_, *sequence, tokens);
  const auto second = SavePack(path, *model_, *sequence, {});
  EXPECT_FALSE(second);
  if (!second) {
    EXPECT_EQ(second.error().code, ErrorCode::kIo) << second.error().ToString();
    EXPECT_NE(second.error().hint.find("disk"), std::string::npos) << second.error().ToString();
  }
  EXPECT_TRUE(ReadBytes(path) == before);
  EXPECT_TRUE(LoadPack(path, *model_));
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(disk)) ++files;
  EXPECT_EQ(files, 2u) << "a temporary file was left";
}

INSTANTIATE_TEST_SUITE_P(Models, Pack,
                         testing::Combine(testing::Values(Kind::kK3, Kind::kDsv4),
                                          testing::Values(Precision::kExact, Precision::kBf16,
                                                          Precision::kQ8)));

}  // namespace
}  // namespace mk::test
