// Speculative and plain runs of the bundled models, token for token and byte for byte: answers,
// last logits, saved states. Alone and eight at a time, greedy and sampled, in all precisions.
//
// MK_SPECULATION_RUNS=1000 compares so many prompts and seeds per architecture; by default a few.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "engine/generate/generate_all.h"
#include "engine/model/executor.h"
#include "engine/model/state.h"

namespace mk {
namespace {

using Ids = std::vector<int32_t>;

size_t Runs() {
  const char* const runs = std::getenv("MK_SPECULATION_RUNS");
  return runs != nullptr ? std::strtoul(runs, nullptr, 10) : 48;
}

struct Case {
  Ids prompt;
  GenerationOptions options;  // without speculation
  SpeculationOptions speculation;
};

// A generation and the sequence that it goes on with.
struct Going {
  std::unique_ptr<Sequence> sequence;
  std::unique_ptr<Generation> generation;
};

class SpeculationModels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto executor = Executor::Create(1);
    ASSERT_TRUE(executor);
    executor_ = std::move(*executor);
    const std::string path = std::string(MK_SOURCE_DIR) + "/models/" + GetParam();
    LoadOptions options;
    auto model = LoadModel(path, options);
    ASSERT_TRUE(model) << model.error().ToString();
    model_ = std::move(*model);
    for (const Precision precision : {Precision::kBf16, Precision::kQ8}) {
      options.precision = precision;
      ASSERT_TRUE(model_->Prepare(precision, options));
    }
    text_ = Story();
  }

  // What the model says by itself.
  Ids Story() {
    Case story;
    story.prompt = {model_->info().bos};
    story.options = Options(1200, 0.8f, 5);
    Going run = Start(story, Precision::kExact, false);
    EXPECT_TRUE(GenerateAll(*model_, *executor_, *run.generation));
    const auto said = run.generation->emitted();
    return {said.begin(), said.end()};
  }

  static GenerationOptions Options(size_t max_new, float temperature, uint64_t seed) {
    GenerationOptions options;
    options.max_new = max_new;
    options.context_limit = 1 << 16;
    options.sampling.temperature = temperature;
    options.sampling.seed = seed;
    return options;
  }

  Going Start(const Case& one, Precision precision, bool speculative) {
    SequenceOptions timeline;
    timeline.precision = precision;
    Going run;
    auto sequence = model_->NewSequence(timeline);
    EXPECT_TRUE(sequence) << sequence.error().ToString();
    run.sequence = std::move(*sequence);
    GenerationOptions options = one.options;
    if (speculative) options.speculation = one.speculation;
    auto made = Generation::Create(*run.sequence, model_->info().vocab, one.prompt, options,
                                   nullptr, nullptr);
    EXPECT_TRUE(made) << made.error().ToString();
    run.generation = std::move(*made);
    return run;
  }

  // A part of the story, in half of the cases with its beginning once more behind it.
  Case RandomCase(std::mt19937& random, size_t number) const {
    Case one;
    const size_t length = 1 + random() % 90;
    const size_t from = random() % (text_.size() - length);
    const auto begin = text_.begin() + static_cast<ptrdiff_t>(from);
    one.prompt.assign(begin, begin + static_cast<ptrdiff_t>(length));
    if (number % 2 == 0) {
      one.prompt.insert(one.prompt.end(), begin, begin + static_cast<ptrdiff_t>(length / 2 + 1));
    }
    const float temperature = number % 4 < 2 ? 0.0f : (number % 4 == 2 ? 0.3f : 0.9f);
    one.options = Options(1 + random() % 60, temperature, random());
    if (number % 3 == 0) one.options.stop_ids = {text_[random() % text_.size()]};
    const auto longest = static_cast<uint32_t>(1 + random() % 24);
    one.speculation.ngram = number % 3 == 1 ? 0 : longest;
    one.speculation.automaton = number % 3 == 2 ? 0 : longest;
    one.speculation.adaptive = number % 5 == 0;
    return one;
  }

  // All of them step by step in common forward passes, as the daemon's scheduler runs them.
  void FinishTogether(std::vector<Going>& runs) {
    for (bool going = true; going;) {
      going = false;
      std::vector<ForwardItem> items;
      std::vector<Going*> taking;
      std::vector<bool> last;
      for (Going& run : runs) {
        Generation& generation = *run.generation;
        if (!generation.finished()) {
          items.push_back(generation.NextItem(kPrefillBlock));
          last.push_back(false);
        } else if (auto item = generation.NormaliseItem()) {
          items.push_back(*item);
          last.push_back(true);
        } else {
          continue;
        }
        taking.push_back(&run);
      }
      if (items.empty()) break;
      going = true;
      const Status ran = model_->Forward(*executor_, items);
      ASSERT_TRUE(ran) << ran.error().ToString();
      for (size_t i = 0; i < taking.size(); ++i) {
        if (last[i]) {
          taking[i]->generation->AcceptNormalised();
          continue;
        }
        const auto step = taking[i]->generation->Accept();
        ASSERT_TRUE(step) << step.error().ToString();
      }
    }
    for (Going& run : runs) ASSERT_TRUE(run.sequence->EndDraft());
  }

  // Everything that a pack would hold.
  std::string StateOf(const Sequence& sequence) const {
    const auto keeper = KeeperOf(*model_);
    EXPECT_TRUE(keeper);
    const auto key = (*keeper)->KeyOf(sequence);
    EXPECT_TRUE(key) << key.error().ToString();
    std::string bytes = std::to_string(key->length) + " " + std::to_string(key->rewindable) + "\n";
    const Status saved = (*keeper)->Save(
        sequence, *key, [&](const StateSection& section, std::span<const std::byte> data) {
          bytes += SectionName(section);
          bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
          return Status();
        });
    EXPECT_TRUE(saved) << saved.error().ToString();
    return bytes;
  }

  void ExpectEqual(const Going& plain, const Going& fast) const {
    const Generation& a = *plain.generation;
    const Generation& b = *fast.generation;
    ASSERT_EQ(Ids(a.emitted().begin(), a.emitted().end()),
              Ids(b.emitted().begin(), b.emitted().end()));
    EXPECT_EQ(a.finish_reason(), b.finish_reason());
    EXPECT_EQ(a.stop_id(), b.stop_id());
    EXPECT_EQ(a.draws(), b.draws());
    EXPECT_TRUE(std::equal(a.logits().begin(), a.logits().end(), b.logits().begin()));
    EXPECT_TRUE(StateOf(*plain.sequence) == StateOf(*fast.sequence));
  }

  void Compare(size_t batch) {
    std::mt19937 random(static_cast<unsigned>(batch));
    uint64_t accepted = 0;
    uint64_t rejected = 0;
    const size_t total = Runs() / 2;
    for (size_t done = 0; done < total && !HasFatalFailure(); done += batch) {
      const auto precision = static_cast<Precision>(done / batch % kPrecisions);
      std::vector<Going> plain;
      std::vector<Going> fast;
      for (size_t i = 0; i < batch; ++i) {
        const Case one = RandomCase(random, done + i);
        plain.push_back(Start(one, precision, false));
        ASSERT_TRUE(GenerateAll(*model_, *executor_, *plain.back().generation));
        fast.push_back(Start(one, precision, true));
      }
      FinishTogether(fast);
      for (size_t i = 0; i < batch; ++i) {
        SCOPED_TRACE("case " + std::to_string(done + i) + " of " + std::to_string(batch));
        ExpectEqual(plain[i], fast[i]);
        accepted += fast[i].generation->speculation()->accepted;
        rejected += fast[i].generation->speculation()->rejected();
      }
    }
    EXPECT_GT(accepted, total);
    EXPECT_GT(rejected, total);
  }

  std::unique_ptr<Executor> executor_;
  std::shared_ptr<const Model> model_;
  Ids text_;
};

TEST_P(SpeculationModels, EqualPlainRunsAlone) {
  Compare(1);
}

TEST_P(SpeculationModels, EqualPlainRunsInBatchesOfEight) {
  Compare(8);
}

INSTANTIATE_TEST_SUITE_P(Bundled, SpeculationModels,
                         testing::Values("story-k3.bin", "story-dsv4.bin"), [](const auto& test) {
                           return std::string(test.param).substr(6, 1) == "k" ? "K3" : "Dsv4";
                         });

}  // namespace
}  // namespace mk
