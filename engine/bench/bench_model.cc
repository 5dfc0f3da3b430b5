#include "engine/bench/bench_model.h"

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>

namespace mk {
namespace {

using Clock = std::chrono::steady_clock;

// A part of the measured time that a point runs unmeasured first: clocks rise, scratch grows, and
// memory that lay idle becomes fast again.
constexpr int kWarmUpPart = 4;
// Decoded tokens after which a sequence starts again from its context.
constexpr size_t kMostSteps = 64;
constexpr size_t kMostSamples = 10000;

struct Task {
  BenchKind kind;
  size_t tokens;
  size_t batch;
};

std::vector<Task> TasksOf(const BenchPlan& plan) {
  std::vector<Task> tasks;
  for (const size_t context : plan.contexts) tasks.push_back({BenchKind::kDecode, context, 1});
  for (const size_t batch : plan.batches) {
    tasks.push_back({BenchKind::kBatch, plan.batch_context, batch});
  }
  for (const size_t prompt : plan.prompts) tasks.push_back({BenchKind::kPrefill, prompt, 1});
  if (plan.first_token_prompt > 0) {
    tasks.push_back({BenchKind::kFirstToken, plan.first_token_prompt, 1});
  }
  return tasks;
}

std::string NameOf(const Task& task) {
  const std::string tokens = std::to_string(task.tokens);
  switch (task.kind) {
    case BenchKind::kDecode:
      return "decode at " + tokens;
    case BenchKind::kBatch:
      return "batch of " + std::to_string(task.batch);
    case BenchKind::kPrefill:
      return "prefill of " + tokens;
    case BenchKind::kFirstToken:
      return "first token after " + tokens;
  }
  return "";
}

// Runs the points of one plan; holds what they share.
class Runner {
 public:
  Runner(const Model& model, Executor& executor, const Roof& roof, const BenchPlan& plan,
         const BenchProgress& progress)
      : model_(model),
        executor_(executor),
        roof_(roof),
        plan_(plan),
        progress_(progress),
        tasks_(TasksOf(plan)) {}

  Result<std::vector<BenchPoint>> Run() {
    std::vector<BenchPoint> points;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      done_ = static_cast<double>(i) / static_cast<double>(tasks_.size());
      name_ = NameOf(tasks_[i]);
      Result<BenchPoint> point = Measure(tasks_[i]);
      if (!point) return Fail(point.error());
      points.push_back(*point);
    }
    return points;
  }

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  Status GoOn() {
    if (!progress_ || progress_(done_, name_)) return {};
    return Fail(ErrorCode::kCancelled, "the benchmark was cancelled");
  }

  int32_t RandomToken() {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(model_.info().vocab));
  }

  Result<std::unique_ptr<Sequence>> NewSequence() {
    SequenceOptions options;
    options.precision = roof_.precision;
    return model_.NewSequence(options);
  }

  // Reads `count` random tokens as a prompt is read: whole pieces, logits at the end.
  Status Prefill(Sequence& sequence, size_t count) {
    prompt_.resize(count);
    for (int32_t& token : prompt_) token = RandomToken();
    logits_.resize(model_.info().vocab);
    for (size_t first = 0; first < count; first += kMaxForwardTokens) {
      if (Status going = GoOn(); !going) return going;
      const size_t n = std::min(kMaxForwardTokens, count - first);
      ForwardItem item{&sequence, std::span(prompt_).subspan(first, n), LogitsWanted::kNone, {}};
      if (first + n == count) {
        item.wanted = LogitsWanted::kLast;
        item.logits = logits_;
      }
      if (Status ran = model_.Forward(executor_, {&item, 1}); !ran) return ran;
    }
    return {};
  }

  // One token of each sequence. The vectors behind `items_` are ready.
  Status Step(const Sequences& sequences) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      prompt_[i] = RandomToken();
      items_[i] = {sequences[i].get(), std::span(prompt_).subspan(i, 1), LogitsWanted::kLast,
                   std::span(logits_).subspan(i * model_.info().vocab, model_.info().vocab)};
    }
    return model_.Forward(executor_, items_);
  }

  // Runs `step` for a while, then again with a clock. `step` times itself.
  template <typename TimedStep>
  Status Sample(const TimedStep& step) {
    samples_.clear();
    for (const bool measured : {false, true}) {
      const auto time = measured ? plan_.time : plan_.time / kWarmUpPart;
      const auto end = Clock::now() + time;
      size_t count = 0;
      do {
        Result<Clock::duration> took = step();
        if (!took) return Fail(took.error());
        if (measured) samples_.push_back(std::chrono::duration<double, std::milli>(*took).count());
        ++count;
      } while (count < kMostSamples && (Clock::now() < end || (measured && count < kLeastSamples)));
    }
    return {};
  }

  Status MeasureSteps(const Task& task) {
    const size_t vocab = model_.info().vocab;
    Sequences bases;
    for (size_t i = 0; i < task.batch; ++i) {
      Result<std::unique_ptr<Sequence>> made = NewSequence();
      if (!made) return Fail(made.error());
      bases.push_back(std::move(*made));
      if (Status read = Prefill(*bases.back(), task.tokens); !read) return read;
    }
    prompt_.resize(task.batch);
    logits_.resize(task.batch * vocab);
    items_.resize(task.batch);
    Sequences running;
    size_t steps = 0;
    return Sample([&]() -> Result<Clock::duration> {
      if (steps++ % kMostSteps == 0) {
        running.clear();
        for (const auto& base : bases) {
          Result<std::unique_ptr<Sequence>> copy = base->Clone();
          if (!copy) return Fail(copy.error());
          running.push_back(std::move(*copy));
        }
      }
      if (Status going = GoOn(); !going) return Fail(going.error());
      const auto start = Clock::now();
      if (Status ran = Step(running); !ran) return Fail(ran.error());
      return Clock::now() - start;
    });
  }

  Status MeasurePrompts(const Task& task) {
    return Sample([&]() -> Result<Clock::duration> {
      const auto start = Clock::now();
      Result<std::unique_ptr<Sequence>> sequence = NewSequence();
      if (!sequence) return Fail(sequence.error());
      if (Status read = Prefill(**sequence, task.tokens); !read) return Fail(read.error());
      return Clock::now() - start;
    });
  }

  Result<BenchPoint> Measure(const Task& task) {
    const bool decodes = task.kind == BenchKind::kDecode || task.kind == BenchKind::kBatch;
    Status measured = decodes ? MeasureSteps(task) : MeasurePrompts(task);
    if (!measured) return Fail(measured.error());
    std::sort(samples_.begin(), samples_.end());
    const auto quantile = [&](size_t tenths) {
      return samples_[((samples_.size() - 1) * tenths + 5) / 10];
    };
    BenchPoint point;
    point.kind = task.kind;
    point.tokens = task.tokens;
    point.batch = task.batch;
    point.samples = samples_.size();
    point.step_ms = quantile(5);
    point.step_ms_p10 = quantile(1);
    point.step_ms_p90 = quantile(9);
    const double per_s = 1000.0 / point.step_ms;
    const double tokens = static_cast<double>(decodes ? task.batch : task.tokens);
    point.tokens_per_s = tokens * per_s;
    point.ms_per_token = point.step_ms / tokens;
    if (decodes) {
      point.gb_per_s = roof_.StepBytesTouched(task.batch, task.tokens) * per_s * 1e-9;
      point.gop_per_s = roof_.DecodeOperations(task.tokens) * tokens * per_s * 1e-9;
      point.limit = roof_.DecodeLimit(task.batch, task.tokens);
    } else {
      point.gop_per_s = roof_.PrefillOperations(task.tokens) * per_s * 1e-9;
      point.limit = roof_.PrefillLimit(task.tokens);
    }
    point.share = point.tokens_per_s / point.limit.tokens_per_s;
    return point;
  }

  const Model& model_;
  Executor& executor_;
  const Roof& roof_;
  const BenchPlan& plan_;
  const BenchProgress& progress_;
  std::vector<Task> tasks_;
  double done_ = 0;
  std::string name_;
  std::minstd_rand random_{20};
  std::vector<int32_t> prompt_;
  std::vector<float> logits_;
  std::vector<ForwardItem> items_;
  std::vector<double> samples_;  // ms
};

}  // namespace

BenchPlan BenchPlan::Full() {
  BenchPlan plan;
  plan.contexts = {128, 2048, 8192};
  plan.batches = {1, 2, 4, 8};
  plan.prompts = {500, 512, 2000};
  return plan;
}

BenchPlan BenchPlan::Quick() {
  BenchPlan plan;
  plan.contexts = {128};
  plan.batches = {1, 4};
  plan.prompts = {500};
  plan.time = std::chrono::milliseconds(200);
  return plan;
}

std::string_view BenchKindName(BenchKind kind) {
  switch (kind) {
    case BenchKind::kDecode:
      return "decode";
    case BenchKind::kBatch:
      return "batch";
    case BenchKind::kPrefill:
      return "prefill";
    case BenchKind::kFirstToken:
      return "first_token";
  }
  return "";
}

Result<std::vector<BenchPoint>> BenchModel(const Model& model, Executor& executor, const Roof& roof,
                                           const BenchPlan& plan, const BenchProgress& progress) {
  return Runner(model, executor, roof, plan, progress).Run();
}

}  // namespace mk
