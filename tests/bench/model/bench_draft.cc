// What it costs to guess tokens and to take guesses back:
//   bench_draft MODEL PRECISION THREADS TOKENS
//
// Behind TOKENS tokens, the fastest of many rounds: a pass over a draft of n tokens of which all,
// half or none are kept, one after the other, so that what keeping costs the next pass is in it;
// and the same number of single tokens. Logits of all rows are made, as verification needs them.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk {
namespace {

constexpr size_t kRounds = 61;
constexpr size_t kDrafts[] = {1, 4, 8, 24};

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "bench_draft: %s\n", problem.c_str());
  return 1;
}

class Bench {
 public:
  Bench(std::shared_ptr<const Model> model, std::unique_ptr<Executor> executor)
      : model_(std::move(model)), executor_(std::move(executor)) {}

  Status Run(const SequenceOptions& options, size_t tokens) {
    Result<std::unique_ptr<Sequence>> made = model_->NewSequence(options);
    if (!made) return Fail(made.error());
    for (size_t t = 0; t < tokens; t += kPrefillBlock) {
      const size_t count = std::min(kPrefillBlock, tokens - t);
      if (Status fed = Feed(**made, count, LogitsWanted::kNone, false); !fed) return fed;
    }
    std::printf("%s, %s, behind %zu tokens\n", model_->info().path.c_str(),
                std::string(PrecisionName(options.precision)).c_str(), tokens);
    std::printf("%5s %12s %22s %22s %22s\n", "draft", "singles ms", "all kept ms", "half kept ms",
                "none kept ms");
    for (const size_t draft : kDrafts) {
      if (Status done = MeasureDraft(**made, draft); !done) return done;
    }
    return {};
  }

 private:
  using Clock = std::chrono::steady_clock;

  // One way to go on: drafts of which `kept` tokens are kept, or single tokens.
  struct Lane {
    std::unique_ptr<Sequence> sequence;
    bool single = false;
    size_t kept = 0;
    double milliseconds = std::numeric_limits<double>::infinity();
  };

  Status Feed(Sequence& sequence, size_t count, LogitsWanted wanted, bool draft) {
    const size_t vocab = model_->info().vocab;
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(next_++ * 7919 % vocab);
    logits_.resize(wanted == LogitsWanted::kNone ? 0 : count * vocab);
    ForwardItem item{&sequence, tokens, wanted, logits_, draft};
    return model_->Forward(*executor_, {&item, 1});
  }

  Status Round(Lane& lane, size_t draft) {
    if (lane.single) {
      for (size_t i = 0; i < draft; ++i) {
        if (Status fed = Feed(*lane.sequence, 1, LogitsWanted::kAll, false); !fed) return fed;
      }
      return {};
    }
    const size_t before = lane.sequence->length();
    if (Status fed = Feed(*lane.sequence, draft, LogitsWanted::kAll, true); !fed) return fed;
    return lane.sequence->Rewind(before + lane.kept);
  }

  // The lanes take turns, so that a busy moment of the machine hits all of them.
  Status MeasureDraft(const Sequence& start, size_t draft) {
    Lane lanes[4];
    lanes[0].single = true;
    lanes[1].kept = draft;
    lanes[2].kept = draft / 2;
    for (Lane& lane : lanes) {
      Result<std::unique_ptr<Sequence>> copy = start.Clone();
      if (!copy) return Fail(copy.error());
      lane.sequence = std::move(*copy);
      // Takes pages of its own.
      for (int i = 0; i < 2; ++i) {
        if (Status done = Round(lane, draft); !done) return done;
      }
    }
    for (size_t round = 0; round < kRounds; ++round) {
      for (Lane& lane : lanes) {
        const auto begin = Clock::now();
        if (Status done = Round(lane, draft); !done) return done;
        const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
        lane.milliseconds = std::min(lane.milliseconds, took.count());
      }
    }
    const double singles = lanes[0].milliseconds;
    std::printf("%5zu %12.4f", draft, singles);
    for (size_t i = 1; i < 4; ++i) {
      std::printf(" %12.4f (x %5.3f)", lanes[i].milliseconds, lanes[i].milliseconds / singles);
    }
    std::printf("\n");
    return {};
  }

  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<Executor> executor_;
  std::vector<float> logits_;
  size_t next_ = 0;
};

bool ParseSize(std::string_view text, size_t& value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end && value > 0;
}

int Main(int argc, char** argv) {
  size_t threads = 0, tokens = 0;
  const auto precision = argc == 5 ? ParsePrecision(argv[2]) : std::nullopt;
  if (!precision || !ParseSize(argv[3], threads) || !ParseSize(argv[4], tokens)) {
    return Refuse("usage: bench_draft MODEL exact|bf16|q8 THREADS TOKENS");
  }
  LoadOptions options;
  options.precision = *precision;
  options.threads = static_cast<int>(threads);
  Result<std::shared_ptr<const Model>> model = LoadModel(argv[1], options);
  if (!model) return Refuse(model.error().ToString());
  Result<std::unique_ptr<Executor>> executor = Executor::Create(threads);
  if (!executor) return Refuse(executor.error().ToString());
  SequenceOptions sequence;
  sequence.precision = *precision;
  Bench bench(*model, std::move(*executor));
  const Status done = bench.Run(sequence, tokens);
  return done ? 0 : Refuse(done.error().ToString());
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  return mk::Main(argc, argv);
}
