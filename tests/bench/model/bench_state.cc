// What it costs to copy, save and restore the state of a sequence:
//   bench_state MODEL PRECISION THREADS TOKENS
//
// Prints medians and the fastest of many rounds: a copy of a sequence of TOKENS tokens with the
// bytes that it takes, a token of a sequence that shares nothing, the first token of a copy (which
// takes pages of its own), saving a pack in the directory for temporary files (synced), and loading
// it (from the page cache).

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/executor.h"
#include "engine/model/state.h"
#include "engine/pack/pack_file.h"

namespace mk {
namespace {

constexpr size_t kRounds = 41;
constexpr size_t kCopies = 256;

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "bench_state: %s\n", problem.c_str());
  return 1;
}

class Bench {
 public:
  Bench(std::shared_ptr<const Model> model, std::unique_ptr<Executor> executor)
      : model_(std::move(model)), executor_(std::move(executor)), logits_(model_->info().vocab) {}

  Status Run(const SequenceOptions& options, size_t tokens) {
    Result<std::unique_ptr<Sequence>> made = model_->NewSequence(options);
    if (!made) return Fail(made.error());
    Sequence& sequence = **made;
    for (size_t t = 0; t < tokens; t += kPrefillBlock) {
      if (Status fed = Feed(sequence, std::min(kPrefillBlock, tokens - t)); !fed) return fed;
    }
    std::printf("%s, %s, %zu tokens, state of %zu bytes\n", model_->info().path.c_str(),
                std::string(PrecisionName(options.precision)).c_str(), tokens,
                sequence.state_bytes());
    if (Status done = MeasureCopies(sequence); !done) return done;
    return MeasurePacks(sequence);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Status Feed(Sequence& sequence, size_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(next_++ * 7919 % logits_.size());
    ForwardItem item{&sequence, tokens, LogitsWanted::kLast, logits_};
    return model_->Forward(*executor_, {&item, 1});
  }

  // Runs `work` many times; stops at its first error.
  template <typename F>
  Status Measure(const char* what, const F& work) {
    std::vector<double> times;
    for (size_t i = 0; i < kRounds; ++i) {
      Result<double> milliseconds = work();
      if (!milliseconds) return Fail(milliseconds.error());
      times.push_back(*milliseconds);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-24s %10.4f ms %10.4f ms\n", what, times[kRounds / 2], times.front());
    return {};
  }
  template <typename F>
  static Result<double> TimeOf(const F& work) {
    const auto start = Clock::now();
    if (Status done = work(); !done) return Fail(done.error());
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }

  Status MeasureCopies(Sequence& sequence) {
    std::printf("%-24s %13s %13s\n", "", "median", "fastest");
    Result<const StateKeeper*> keeper = KeeperOf(*model_);
    if (!keeper) return Fail(keeper.error());
    std::unique_ptr<Sequence> copy;
    const auto clone = [&]() -> Status {
      Result<std::unique_ptr<Sequence>> made = sequence.Clone();
      if (!made) return Fail(made.error());
      copy = std::move(*made);
      return {};
    };
    // Of many copies: what the allocator keeps for itself does not show then.
    const auto heap = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
    std::vector<std::unique_ptr<Sequence>> copies(kCopies);
    const size_t before = heap();
    for (std::unique_ptr<Sequence>& each : copies) {
      if (Status done = clone(); !done) return done;
      each = std::move(copy);
    }
    const size_t bytes = (heap() - before) / kCopies + (*keeper)->OwnBytes(*copies.front());
    copies.clear();
    Status done = Measure("copy", [&]() -> Result<double> {
      copy.reset();
      return TimeOf(clone);
    });
    if (!done) return done;
    std::printf("%-24s %10zu bytes\n", "copy", bytes);
    done = Measure("first token of a copy", [&]() -> Result<double> {
      if (Status made = clone(); !made) return Fail(made.error());
      return TimeOf([&] { return Feed(*copy, 1); });
    });
    if (!done) return done;
    return Measure("token after that", [&] { return TimeOf([&] { return Feed(*copy, 1); }); });
  }

  Status MeasurePacks(Sequence& sequence) {
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("bench_state." + std::to_string(::getpid()) + ".mkmem"))
                                 .string();
    uint64_t bytes = 0;
    Status done = Measure("save", [&] {
      return TimeOf([&]() -> Status {
        Result<PackInfo> saved = SavePack(path, *model_, sequence, {{}, logits_, {}});
        if (!saved) return Fail(saved.error());
        bytes = saved->file_bytes;
        return {};
      });
    });
    if (done) {
      done = Measure("load", [&] {
        return TimeOf([&]() -> Status {
          Result<LoadedPack> loaded = LoadPack(path, *model_);
          return loaded ? Status() : Fail(loaded.error());
        });
      });
    }
    if (done) std::printf("%-24s %10llu bytes\n", "pack", static_cast<unsigned long long>(bytes));
    ::unlink(path.c_str());
    return done;
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
    return Refuse("usage: bench_state MODEL exact|bf16|q8 THREADS TOKENS");
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
