// What speculation brings, and what it costs where it brings nothing:
//   bench_speculate MODEL [THREADS [DRAFT]]
// In every precision it goes on with two kinds of text, plainly and with drafts of both proposers
// (each on its own, and merged), and prints tokens per second, their ratio and how many tokens a
// forward pass brought. `copy`: greedy, after a text that was said twice, in long runs: what is
// said repeats what was said. `story`: sampled at temperature 0.9, hardly anything comes twice.
// Answers are compared: another one than the plain run's is an error. Runs alternate; the fastest
// counts.

#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/generate/generation.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk {
namespace {

constexpr int kRounds = 4;
constexpr size_t kTokens = 300;
constexpr int kPrompts = 8;

using Ids = std::vector<int32_t>;

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "bench_speculate: %s\n", problem.c_str());
  return 1;
}

struct Text {
  const char* name;
  Ids prompt;
  SamplingOptions sampling;
};

struct Proposers {
  const char* name;
  SpeculationOptions options;
};

struct Run {
  Ids ids;
  double seconds = 0;  // of the tokens behind the first
  SpeculationStats stats;
};

class Bench {
 public:
  Bench(const Model& model, Executor& executor, uint32_t draft)
      : model_(model),
        executor_(executor),
        clock_(executor.pool().size() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC),
        draft_(draft) {}

  Result<Run> Generate(const Text& text, Precision precision, const SpeculationOptions& speculation,
                       size_t tokens) {
    SequenceOptions timeline;
    timeline.precision = precision;
    auto sequence = model_.NewSequence(timeline);
    if (!sequence) return Fail(sequence.error());
    GenerationOptions options;
    options.sampling = text.sampling;
    options.max_new = tokens;
    options.context_limit = text.prompt.size() + tokens;
    options.speculation = speculation;
    auto made =
        Generation::Create(**sequence, model_.info().vocab, text.prompt, options, nullptr, nullptr);
    if (!made) return Fail(made.error());
    Generation& generation = **made;
    double first = 0;
    while (!generation.finished()) {
      ForwardItem item = generation.NextItem(kMaxForwardTokens);
      const double begin = Now();
      if (Status ran = model_.Forward(executor_, std::span(&item, 1)); !ran) {
        return Fail(ran.error());
      }
      generation.Took(item.tokens.size(), Now() - begin);
      auto step = generation.Accept();
      if (!step) return Fail(step.error());
      if (first == 0 && !generation.emitted().empty()) first = Now();
    }
    Run run{{generation.emitted().begin(), generation.emitted().end()}, Now() - first, {}};
    if (generation.speculation() != nullptr) run.stats = *generation.speculation();
    return run;
  }

  // Greedy, after a story that is told several times: of some stories the one that is repeated
  // most.
  Result<Text> FindCopy(const Text& story, Precision precision) {
    Text best{"copy", {}, {}};
    uint64_t most = 0;
    for (int i = 0; i < kPrompts; ++i) {
      Text told = story;
      told.sampling.seed = static_cast<uint64_t>(i);
      auto once = Generate(told, precision, {}, 24 + 24 * static_cast<size_t>(i));
      if (!once) return Fail(once.error());
      Text copy{"copy", story.prompt, {}};
      for (int times = 0; times < 3; ++times) {
        copy.prompt.insert(copy.prompt.end(), once->ids.begin(), once->ids.end());
      }
      auto run = Generate(copy, precision, {8, 0, false}, kTokens);
      if (!run) return Fail(run.error());
      if (run->stats.accepted >= most) best = copy;
      most = std::max(most, run->stats.accepted);
    }
    std::printf("%-9s copy: %.0f %% of it repeats what was said\n",
                std::string(PrecisionName(precision)).c_str(),
                100.0 * static_cast<double>(most) / static_cast<double>(kTokens - 1));
    return best;
  }

  // Of passes of 1, 2, 4, ... tokens the fastest.
  Status MeasurePasses(const Ids& prompt, Precision precision) {
    SequenceOptions timeline;
    timeline.precision = precision;
    auto sequence = model_.NewSequence(timeline);
    if (!sequence) return Fail(sequence.error());
    std::vector<float> logits(32 * model_.info().vocab);
    const auto read_first = std::span(prompt).first(std::min(prompt.size(), kMaxForwardTokens));
    ForwardItem item{sequence->get(), read_first, LogitsWanted::kNone, {}, false};
    if (Status read = model_.Forward(executor_, std::span(&item, 1)); !read) return read;
    double one = 0;
    std::printf("%-9s passes:", std::string(PrecisionName(precision)).c_str());
    for (size_t rows = 1; rows <= 32; rows *= 2) {
      double fastest = 1e9;
      for (int i = 0; i < 60; ++i) {
        item = {sequence->get(), std::span(prompt).first(rows), LogitsWanted::kAll,
                std::span(logits).first(rows * model_.info().vocab), rows > 1};
        const double begin = Now();
        if (Status ran = model_.Forward(executor_, std::span(&item, 1)); !ran) return ran;
        fastest = std::min(fastest, Now() - begin);
        if (!item.draft) continue;
        if (Status back = (*sequence)->Rewind((*sequence)->length() - rows); !back) return back;
      }
      if (rows == 1) one = fastest;
      std::printf("  %zu: %.2f", rows, fastest / one);
    }
    std::printf("\n");
    return {};
  }

  Status Compare(const Text& text, Precision precision) {
    const std::vector<Proposers> all = {{"n-grams", {draft_, 0, true}},
                                        {"automaton", {0, draft_, true}},
                                        {"both", {draft_, draft_, true}}};
    Run plain;
    std::vector<Run> fastest(all.size());
    for (int round = 0; round < kRounds; ++round) {
      if (Status status = Measure(text, precision, {}, plain); !status) return status;
      for (size_t i = 0; i < all.size(); ++i) {
        if (Status status = Measure(text, precision, all[i].options, fastest[i]); !status) {
          return status;
        }
        if (fastest[i].ids != plain.ids) {
          return Fail(ErrorCode::kInternal, "a speculative run gave another answer");
        }
      }
    }
    for (size_t i = 0; i < all.size(); ++i) Print(text, precision, all[i].name, plain, fastest[i]);
    return {};
  }

 private:
  double Now() const {
    timespec now{};
    clock_gettime(clock_, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  Status Measure(const Text& text, Precision precision, const SpeculationOptions& speculation,
                 Run& fastest) {
    auto run = Generate(text, precision, speculation, kTokens);
    if (!run) return Fail(run.error());
    if (fastest.ids.empty() || run->seconds < fastest.seconds) fastest = std::move(*run);
    return {};
  }

  static void Print(const Text& text, Precision precision, const char* proposers, const Run& plain,
                    const Run& fast) {
    const SpeculationStats& stats = fast.stats;
    const double steps = static_cast<double>(stats.passes + stats.singles);
    const auto rate = [](const Run& run) {
      return static_cast<double>(run.ids.size() - 1) / run.seconds;
    };
    std::printf("%-9s %-6s %-10s %9.0f %9.0f %6.2f %12.2f %9llu/%llu\n",
                std::string(PrecisionName(precision)).c_str(), text.name, proposers, rate(plain),
                rate(fast), rate(fast) / rate(plain),
                (steps + static_cast<double>(stats.accepted)) / steps,
                static_cast<unsigned long long>(stats.accepted),
                static_cast<unsigned long long>(stats.drafted));
    std::fflush(stdout);
  }

  const Model& model_;
  Executor& executor_;
  const clockid_t clock_;
  const uint32_t draft_;
};

int RunAll(const char* path, size_t threads, uint32_t draft) {
  auto executor = Executor::Create(threads);
  if (!executor) return Refuse(executor.error().ToString());
  LoadOptions options;
  options.threads = static_cast<int>(threads);
  auto model = LoadModel(path, options);
  if (!model) return Refuse(model.error().ToString());
  Bench bench(**model, **executor, draft);

  Text story{"story", {(*model)->info().bos}, {}};
  story.sampling.temperature = 0.9f;
  story.sampling.seed = 3;
  std::printf("%-9s %-6s %-10s %9s %9s %6s %12s %s\n", "precision", "text", "proposer", "plain/s",
              "spec/s", "ratio", "tokens/pass", "accepted/drafted");
  for (const Precision precision : {Precision::kExact, Precision::kBf16, Precision::kQ8}) {
    options.precision = precision;
    if (Status ready = (*model)->Prepare(precision, options); !ready) {
      return Refuse(ready.error().ToString());
    }
    auto copy = bench.FindCopy(story, precision);
    if (!copy) return Refuse(copy.error().ToString());
    if (Status status = bench.MeasurePasses(copy->prompt, precision); !status) {
      return Refuse(status.error().ToString());
    }
    for (const Text* text : {&*copy, &story}) {
      if (Status status = bench.Compare(*text, precision); !status) {
        return Refuse(status.error().ToString());
      }
    }
  }
  return 0;
}

template <typename Number>
bool ParseNumber(std::string_view text, Number most, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 && number <= most;
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  size_t threads = 2;
  uint32_t draft = 16;
  const bool good = argc >= 2 && argc <= 4 &&
                    (argc < 3 || mk::ParseNumber<size_t>(argv[2], 256, threads)) &&
                    (argc < 4 || mk::ParseNumber<uint32_t>(argv[3], mk::kMaxDraft, draft));
  if (!good) return mk::Refuse("usage: bench_speculate MODEL [THREADS [DRAFT]]");
  return mk::RunAll(argv[1], threads, draft);
}
