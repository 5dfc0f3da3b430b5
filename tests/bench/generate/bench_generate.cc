// The engine alone, on the path that the daemon takes for one greedy run: what a token costs
// without a daemon. Loads once, then generates whenever it is told to:
//   bench_generate MODEL PRECISION THREADS
// reads lines "IDS COUNT" (IDS separated by commas) and prints for each a line of JSON:
//   {"tokens": 100, "wall_us": 51234, "cpu_us": 98765}
// with the time from the first piece of the prompt to the last token, of all threads for cpu_us.

#include <time.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "engine/generate/generate_all.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk {
namespace {

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "bench_generate: %s\n", problem.c_str());
  return 1;
}

double CpuMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

struct Task {
  std::vector<int32_t> ids;
  size_t count = 0;
};

template <typename Number>
bool ParseNumber(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseTask(std::string_view line, Task& task) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return false;
  std::string_view ids = line.substr(0, space);
  while (!ids.empty()) {
    const std::string_view word = ids.substr(0, ids.find(','));
    if (!ParseNumber(word, task.ids.emplace_back())) return false;
    ids.remove_prefix(std::min(ids.size(), word.size() + 1));
  }
  return ParseNumber(line.substr(space + 1), task.count) && task.count > 0;
}

Status Measure(const Model& model, Precision precision, Executor& executor, const Task& task) {
  SequenceOptions timeline;
  timeline.precision = precision;
  Result<std::unique_ptr<Sequence>> sequence = model.NewSequence(timeline);
  if (!sequence) return Fail(sequence.error());
  GenerationOptions options;
  options.max_new = task.count;
  options.context_limit = task.ids.size() + task.count;
  const auto vocab = static_cast<size_t>(model.info().vocab);
  Result<std::unique_ptr<Generation>> generation =
      Generation::Create(**sequence, vocab, task.ids, options, nullptr, nullptr);
  if (!generation) return Fail(generation.error());
  const double cpu = CpuMicroseconds();
  const auto start = std::chrono::steady_clock::now();
  if (Status status = GenerateAll(model, executor, **generation); !status) return status;
  const std::chrono::duration<double, std::micro> wall = std::chrono::steady_clock::now() - start;
  std::printf("{\"tokens\": %zu, \"wall_us\": %.1f, \"cpu_us\": %.1f}\n",
              (*generation)->emitted().size(), wall.count(), CpuMicroseconds() - cpu);
  std::fflush(stdout);
  return {};
}

int Run(const char* path, Precision precision, size_t threads) {
  Result<std::unique_ptr<Executor>> executor = Executor::Create(threads);
  if (!executor) return Refuse(executor.error().ToString());
  LoadOptions options;
  options.precision = precision;
  options.threads = static_cast<int>(threads);
  Result<std::shared_ptr<const Model>> model = LoadModel(path, options);
  if (!model) return Refuse(model.error().ToString());
  for (std::string line; std::getline(std::cin, line);) {
    Task task;
    if (!ParseTask(line, task)) return Refuse("not \"IDS COUNT\": " + line);
    if (Status status = Measure(**model, precision, **executor, task); !status) {
      return Refuse(status.error().ToString());
    }
  }
  return 0;
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  if (argc != 4) return mk::Refuse("usage: bench_generate MODEL PRECISION THREADS");
  const auto precision = mk::ParsePrecision(argv[2]);
  if (!precision) return mk::Refuse("the precision is exact, bf16 or q8");
  size_t threads = 0;
  if (!mk::ParseNumber<size_t>(argv[3], threads) || threads == 0) {
    return mk::Refuse("the number of threads is a positive number");
  }
  return mk::Run(argv[1], *precision, threads);
}
