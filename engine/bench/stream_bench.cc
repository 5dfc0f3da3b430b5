#include "engine/bench/stream_bench.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <utility>

#include "engine/generate/generation.h"

namespace mk {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// FNV-1a over the bits of logits.
uint64_t Digest(std::span<const float> logits, uint64_t digest) {
  for (const auto byte : std::as_bytes(logits)) {
    digest = (digest ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  }
  return digest;
}

struct Measured {
  StreamBenchPoint point;
  uint64_t digest = 0xcbf29ce484222325;
};

// Runs one model through the plan.
class StreamRunner {
 public:
  StreamRunner(const Model& model, Executor& executor, const StreamBenchPlan& plan,
               const StreamWay& way)
      : model_(model), executor_(executor), plan_(plan), way_(way), logits_(model.info().vocab) {}

  Result<Measured> Run(size_t clients, bool same_text) {
    measured_.point.clients = clients;
    measured_.point.same_text = same_text;
    for (size_t i = 0; i < clients; ++i) {
      texts_.emplace_back(same_text ? 1 : 1 + i);
      SequenceOptions options;
      options.precision = plan_.precision;
      Result<std::unique_ptr<Sequence>> sequence = model_.NewSequence(options);
      if (!sequence) return Fail(sequence.error());
      sequences_.push_back(std::move(*sequence));
    }
    Status done = Prefill();
    if (done) done = way_.greedy ? Generate() : Decode();
    if (!done) return Fail(done.error());
    return std::move(measured_);
  }

 private:
  int32_t RandomToken(size_t client) {
    return static_cast<int32_t>(texts_[client]() % static_cast<uint64_t>(model_.info().vocab));
  }

  Status Prefill() {
    const std::optional<StreamStats> before = model_.stream_stats();
    const uint64_t needed_before = executor_.expert_use().reads;
    const auto start = Clock::now();
    for (size_t client = 0; client < sequences_.size(); ++client) {
      std::vector<int32_t> prompt(plan_.prompt);
      for (int32_t& token : prompt) token = RandomToken(client);
      for (size_t first = 0; first < prompt.size(); first += kMaxForwardTokens) {
        const size_t n = std::min(kMaxForwardTokens, prompt.size() - first);
        ForwardItem item{sequences_[client].get(), std::span(prompt).subspan(first, n),
                         LogitsWanted::kLast, logits_};
        if (Status ran = model_.Forward(executor_, {&item, 1}); !ran) return ran;
        measured_.digest = Digest(logits_, measured_.digest);
      }
    }
    measured_.point.prefill_ms = MillisecondsSince(start);
    if (before) {
      const double needed = static_cast<double>(executor_.expert_use().reads - needed_before);
      const StreamStats after = *model_.stream_stats();
      measured_.point.prefill_reads_per_expert =
          static_cast<double>(after.misses - before->misses) / needed;
    }
    return {};
  }

  Status Decode() {
    const std::optional<StreamStats> before = model_.stream_stats();
    std::vector<double> times;
    const auto start = Clock::now();
    for (size_t step = 0; step < plan_.tokens; ++step) {
      const auto token_start = Clock::now();
      if (Status stepped = Step(); !stepped) return stepped;
      times.push_back(MillisecondsSince(token_start));
    }
    const double total = MillisecondsSince(start);
    Tell(total, std::move(times));
    if (before) TellStream(*before, *model_.stream_stats(), total);
    return {};
  }

  // The model's own text, with guesses or without.
  Status Generate() {
    GenerationOptions options;
    options.max_new = plan_.tokens;
    options.context_limit = plan_.prompt + plan_.tokens + 1;
    options.speculation.shadow = static_cast<uint32_t>(way_.guesses);
    Result<std::unique_ptr<Generation>> made = Generation::Create(
        *sequences_[0], logits_.size(), {RandomToken(0)}, std::move(options), nullptr, nullptr);
    if (!made) return Fail(made.error());
    Generation& generation = **made;
    const std::optional<StreamStats> before = model_.stream_stats();
    std::vector<double> times;
    const auto start = Clock::now();
    while (!generation.finished()) {
      const auto step_start = Clock::now();
      ForwardItem item = generation.NextItem(kMaxDraftTokens);
      if (Status ran = model_.Forward(executor_, {&item, 1}); !ran) return ran;
      Result<GenerationStep> step = generation.Accept();
      if (!step) return Fail(step.error());
      times.push_back(MillisecondsSince(step_start));
    }
    const double total = MillisecondsSince(start);
    for (const int32_t token : generation.emitted()) {
      const auto value = static_cast<float>(token);
      measured_.digest = Digest({&value, 1}, measured_.digest);
    }
    Tell(total, std::move(times));
    if (before) TellStream(*before, *model_.stream_stats(), total);
    if (const SpeculationStats* stats = generation.speculation(); stats && stats->drafted > 0) {
      measured_.point.accepted_share =
          static_cast<double>(stats->accepted) / static_cast<double>(stats->drafted);
    }
    return {};
  }

  // A token of every client, in one pass.
  Status Step() {
    const size_t clients = sequences_.size();
    std::vector<int32_t> tokens(clients);
    std::vector<float> rows(clients * logits_.size());
    std::vector<ForwardItem> items(clients);
    for (size_t i = 0; i < clients; ++i) {
      tokens[i] = RandomToken(i);
      items[i] = {sequences_[i].get(), std::span(tokens).subspan(i, 1), LogitsWanted::kLast,
                  std::span(rows).subspan(i * logits_.size(), logits_.size())};
      if (way_.fallback) items[i].experts = ExpertAccess::kShadow;
    }
    if (Status ran = model_.Forward(executor_, items); !ran) return ran;
    for (const ForwardItem& item : items) {
      if (item.shadowed > 0) measured_.point.degraded = true;
    }
    measured_.digest = Digest(rows, measured_.digest);
    return {};
  }

  void Tell(double total_ms, std::vector<double> times) {
    StreamBenchPoint& point = measured_.point;
    const double tokens = static_cast<double>(plan_.tokens * sequences_.size());
    point.tokens_per_s = 1e3 * tokens / total_ms;
    std::sort(times.begin(), times.end());
    point.token_p50_ms = times[times.size() / 2];
    point.token_max_ms = times.back();
  }

  void TellStream(const StreamStats& before, const StreamStats& after, double total_ms) {
    StreamBenchPoint& point = measured_.point;
    const double tokens = static_cast<double>(plan_.tokens * sequences_.size());
    const auto gained = [&](uint64_t StreamStats::*count) {
      return static_cast<double>(after.*count - before.*count);
    };
    point.hit_share = gained(&StreamStats::hits) / std::max(1.0, gained(&StreamStats::demands));
    point.reads_per_token = gained(&StreamStats::reads) / tokens;
    point.bytes_per_token = gained(&StreamStats::read_bytes) / tokens;
    point.stall_share = gained(&StreamStats::stall_ns) / 1e6 / total_ms;
    double good = 0;
    double settled = 0;
    for (size_t i = 0; i < kPrefetchSources; ++i) {
      const PrefetchStats& now = after.prefetch[i];
      const PrefetchStats& then = before.prefetch[i];
      const double used = static_cast<double>(now.useful + now.late - then.useful - then.late);
      good += used;
      settled += used + static_cast<double>(now.wasted - then.wasted);
    }
    point.useful_share = settled > 0 ? good / settled : 0;
  }

  const Model& model_;
  Executor& executor_;
  const StreamBenchPlan& plan_;
  const StreamWay& way_;
  std::vector<std::mt19937_64> texts_;  // of the clients
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<float> logits_;
  Measured measured_;
};

class StreamBench {
 public:
  StreamBench(const StreamLoad& load, const StreamBenchPlan& plan, const StreamBenchSink& sink)
      : load_(load), plan_(plan), sink_(sink) {}

  Status Run() {
    Result<std::unique_ptr<Executor>> executor = Executor::Create(plan_.threads);
    if (!executor) return Fail(executor.error());
    executor_ = std::move(*executor);
    if (Status resident = RunResident(); !resident) return resident;
    for (const double share : plan_.shares) {
      for (const StreamWay& way : StreamWays(!plan_.shadows.empty())) {
        if (Status ran = RunWay(way, share, 1, false); !ran) return ran;
      }
    }
    for (const size_t clients : plan_.clients) {
      if (clients < 2) continue;
      for (const bool same_text : {true, false}) {
        Status ran = RunWay(StreamWays(false).back(), plan_.clients_share, clients, same_text);
        if (!ran) return ran;
      }
    }
    return {};
  }

 private:
  // What the digests of the others are compared with, by clients and text.
  Status RunResident() {
    Result<std::shared_ptr<const Model>> model = load_(std::nullopt);
    if (!model) return Fail(model.error());
    if ((*model)->info().experts == 0) {
      return Fail(ErrorCode::kInvalidArgument,
                  (*model)->info().path + " has no routed experts to stream", "name another model");
    }
    StreamWay way;
    way.name = "resident";
    for (const size_t clients : plan_.clients) {
      for (const bool same_text : {true, false}) {
        if (clients < 2 && same_text) continue;
        if (Status ran = RunResident(**model, way, clients, same_text); !ran) return ran;
      }
    }
    way.greedy = true;
    return plan_.shadows.empty() ? Status() : RunResident(**model, way, 1, false);
  }

  Status RunResident(const Model& model, const StreamWay& way, size_t clients, bool same_text) {
    StreamRunner runner(model, *executor_, plan_, way);
    Result<Measured> measured = runner.Run(clients, same_text);
    if (!measured) return Fail(measured.error());
    measured->point.way = way.greedy ? "resident, greedy" : "resident";
    digests_[{clients, same_text, way.greedy}] = measured->digest;
    return Tell(measured->point);
  }

  Status RunWay(const StreamWay& way, double share, size_t clients, bool same_text) {
    StreamOptions options;
    options.policy = way.policy;
    options.fuse = way.fuse;
    options.depth = way.depth;
    options.slow_disk = plan_.disk;
    if (!way.prefetch) options.prefetch = {};
    if (way.fallback || way.guesses > 0) options.shadows = plan_.shadows;
    Result<uint64_t> budget = BudgetOf(share);
    if (!budget) return Fail(budget.error());
    options.budget = *budget;
    Result<std::shared_ptr<const Model>> model = load_(options);
    if (!model) return Fail(model.error());
    StreamRunner runner(**model, *executor_, plan_, way);
    Result<Measured> measured = runner.Run(clients, same_text);
    if (!measured) return Fail(measured.error());
    StreamBenchPoint& point = measured->point;
    point.way = way.name;
    point.share = share;
    point.budget = *budget;
    const auto expected = digests_.find({clients, same_text, way.greedy});
    point.exact = expected != digests_.end() && expected->second == measured->digest;
    return Tell(point);
  }

  Result<uint64_t> BudgetOf(double share) {
    if (all_bytes_ == 0) {
      // As much as it likes: only to ask what that is.
      Result<std::shared_ptr<const Model>> model = load_(StreamOptions());
      if (!model) return Fail(model.error());
      all_bytes_ = (*model)->stream_stats()->all_bytes;
    }
    return static_cast<uint64_t>(share * static_cast<double>(all_bytes_));
  }

  Status Tell(const StreamBenchPoint& point) {
    if (sink_(point)) return {};
    return Fail(ErrorCode::kCancelled, "the benchmark was cancelled");
  }

  const StreamLoad& load_;
  const StreamBenchPlan& plan_;
  const StreamBenchSink& sink_;
  std::unique_ptr<Executor> executor_;
  uint64_t all_bytes_ = 0;
  std::map<std::tuple<size_t, bool, bool>, uint64_t> digests_;  // clients, same text, greedy
};

}  // namespace

std::vector<StreamWay> StreamWays(bool shadows) {
  std::vector<StreamWay> ways = {
      {"serial", "LRU, one read at a time", CachePolicyKind::kLru, false, false, 1},
      {"parallel", "LRU, the reads of a layer side by side", CachePolicyKind::kLru, false, false},
      {"fused", "and neighbours in the file share a read", CachePolicyKind::kLru, true, false},
      {"aged", "and use counts that fade decide what stays", CachePolicyKind::kAged, true, false},
      {"default", "and experts are read ahead", CachePolicyKind::kAged, true, true},
  };
  if (!shadows) return ways;
  ways.push_back({"greedy", "the default with the model's own text, to compare the next with",
                  CachePolicyKind::kAged, true, true, 64, false, true, 0});
  ways.push_back({"guessed", "and shadows guess tokens, which are then verified together",
                  CachePolicyKind::kAged, true, true, 64, false, true, 8});
  ways.push_back({"fallback", "shadows stand in for what is not in memory: degraded",
                  CachePolicyKind::kAged, true, true, 64, true, false, 0});
  return ways;
}

Status BenchStream(const StreamLoad& load, const StreamBenchPlan& plan,
                   const StreamBenchSink& sink) {
  return StreamBench(load, plan, sink).Run();
}

}  // namespace mk
