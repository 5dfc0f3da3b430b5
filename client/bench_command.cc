// `mk bench`

#include <unistd.h>

#include <algorithm>

#include "client/bench_result.h"
#include "client/commands.h"
#include "client/detach.h"
#include "client/job.h"
#include "client/report.h"
#include "client/stream.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;

constexpr size_t kPromptTokens = 16;
// Of pings and of first tokens: the first ones warm up.
constexpr size_t kWarmUps = 3;
constexpr size_t kSamples = 9;

struct BenchSettings {
  AccessOptions access;
  std::string model;
  std::vector<std::string> precisions;
  bool quick = false;
  uint64_t threads = 0;
  bool json = false;
  bool markdown = false;
  bool detach = false;
};

std::optional<int> ParseBench(const Command& command, int argc, char** argv,
                              BenchSettings& settings) {
  CommandLine line(command);
  CLI::App& app = line.app();
  app.add_option("MODEL", settings.model, "Path, alias or name (default: the default model)");
  line.AddRepeated("--precision", settings.precisions,
                   "Arithmetic: exact, bf16, q8; may be given several times (default: all)")
      ->type_name("PRECISION")
      ->check(OneOf({"exact", "bf16", "q8"}));
  app.add_flag("--quick", settings.quick, "A few points in a few seconds");
  line.AddNumber("--threads", settings.threads, "Threads (default: the daemon's)", 1, 1024);
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  app.add_flag("--markdown", settings.markdown, "Markdown instead of text");
  AddDetach(line, settings.detach);
  line.AddAccess(settings.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  if (settings.json && settings.markdown) {
    return ReportUsage("--json and --markdown exclude each other", "leave out one of them");
  }
  if (settings.detach && settings.markdown) {
    return ReportUsage("--detach and --markdown exclude each other",
                       "`mk jobs show` shows the result");
  }
  if (settings.precisions.empty()) settings.precisions = {"exact", "bf16", "q8"};
  settings.model = ModelArgument(settings.model);
  return std::nullopt;
}

double MillisecondsSince(Deadline start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Median of what `measure` gives after its warm-ups; its first error.
template <typename Measure>
Result<double> Median(const Measure& measure) {
  std::vector<double> values;
  for (size_t i = 0; i < kWarmUps + kSamples; ++i) {
    Result<double> value = measure();
    if (!value) return Fail(std::move(value.error()));
    if (i >= kWarmUps) values.push_back(*value);
  }
  std::nth_element(values.begin(), values.begin() + kSamples / 2, values.end());
  return values[kSamples / 2];
}

class Bench {
 public:
  Bench(const BenchSettings& settings, Session& session, Output& output)
      : settings_(settings), session_(session), output_(output) {}

  Result<std::vector<BenchResult>> Run() {
    // Where the model is, and the file into the page cache.
    auto found = Load(settings_.model, settings_.precisions.front(), std::nullopt);
    if (!found) return Fail(std::move(found.error()));
    path_ = found->model.path;
    keep_alive_ms_ = found->model.keep_alive_ms;
    pinned_ = found->model.pinned;
    std::vector<BenchResult> results;
    for (const std::string& precision : settings_.precisions) {
      Result<BenchResult> result = RunOne(precision);
      if (!result) return Fail(std::move(result.error()));
      results.push_back(std::move(*result));
    }
    return results;
  }

 private:
  Result<protocol::LoadDone> Load(const std::string& model, const std::string& precision,
                                  std::optional<int64_t> keep_alive_ms) {
    protocol::LoadArgs args;
    args.model.model = model;
    args.precision = precision;
    args.keep_alive_ms = keep_alive_ms;
    args.pin = pinned_;
    return RunJobFor<protocol::LoadDone>(session_, std::move(args), output_, !settings_.json);
  }

  // Time to load the model into a daemon that does not hold it.
  Result<double> LoadTime(const std::string& precision) {
    auto unloaded = AskFor<protocol::UnloadDone>(session_, protocol::UnloadArgs{path_});
    if (!unloaded && unloaded.error().code != ErrorCode::kModelNotFound) {
      return Fail(std::move(unloaded.error()));
    }
    const Deadline start = Clock::now();
    auto loaded = Load(path_, precision, keep_alive_ms_);
    if (!loaded) return Fail(std::move(loaded.error()));
    return MillisecondsSince(start);
  }

  Result<double> PingTime() {
    return Median([&]() -> Result<double> {
      const Deadline start = Clock::now();
      auto done = AskFor<protocol::PingDone>(session_, protocol::PingArgs{});
      if (!done) return Fail(std::move(done.error()));
      return MillisecondsSince(start);
    });
  }

  Result<double> FirstTokenTime(const std::string& precision, uint64_t vocab) {
    protocol::RunArgs args;
    args.model.model = path_;
    args.raw = true;
    args.max_new = 1;
    args.precision = precision;
    args.ids.emplace();
    for (uint64_t i = 0; i < kPromptTokens; ++i) {
      args.ids->push_back(static_cast<int32_t>((i * 7919 + 1) % vocab));
    }
    const SignalWatch signals;
    return Median([&] { return OneFirstToken(args, signals); });
  }

  Result<double> OneFirstToken(const protocol::RunArgs& args, const SignalWatch& signals) {
    const Deadline start = Clock::now();
    double first = 0;
    auto end = RunStream(session_, args, {}, output_, signals, [&](const protocol::Body& body) {
      const bool token = std::holds_alternative<protocol::TokenChunk>(body);
      if (token && first == 0) first = MillisecondsSince(start);
      return protocol::Status();
    });
    if (!end) return Fail(std::move(end.error()));
    if (end->output_closed) LeaveOnClosedPipe();
    if (!end->body) return Fail(ErrorCode::kCancelled, "interrupted");
    if (auto* error = std::get_if<protocol::Error>(&*end->body)) return Fail(std::move(*error));
    // The model may end its answer at once: then its end is what is seen first.
    return first > 0 ? first : MillisecondsSince(start);
  }

  Result<BenchResult> RunOne(const std::string& precision) {
    BenchResult result;
    BenchSeen seen;
    Result<double> load = LoadTime(precision);
    if (!load) return Fail(std::move(load.error()));
    seen.load_ms = *load;
    protocol::BenchArgs args;
    args.model.model = path_;
    args.precision = precision;
    args.quick = settings_.quick;
    args.threads = static_cast<uint32_t>(settings_.threads);
    auto done = RunJobFor<protocol::BenchDone>(session_, args, output_, !settings_.json);
    if (!done) return Fail(std::move(done.error()));
    result.done = std::move(*done);
    Result<double> ttft = FirstTokenTime(precision, std::max<uint64_t>(1, result.done.vocab));
    if (!ttft) return Fail(std::move(ttft.error()));
    Result<double> ping = PingTime();
    if (!ping) return Fail(std::move(ping.error()));
    seen.ttft_ms = *ttft;
    seen.ping_ms = *ping;
    seen.prompt_tokens = kPromptTokens;
    result.seen = seen;
    return result;
  }

  const BenchSettings& settings_;
  Session& session_;
  Output& output_;
  std::string path_;
  int64_t keep_alive_ms_ = 0;
  bool pinned_ = false;  // it stays as long as it would have stayed
};

// One job per precision.
std::vector<protocol::JobSpec> SpecsOf(const BenchSettings& settings) {
  std::vector<protocol::JobSpec> specs;
  for (const std::string& precision : settings.precisions) {
    protocol::BenchArgs args;
    args.model.model = settings.model;
    args.precision = precision;
    args.quick = settings.quick;
    args.threads = static_cast<uint32_t>(settings.threads);
    specs.emplace_back().bench = std::move(args);
  }
  return specs;
}

}  // namespace

int BenchCommand(const Command& command, int argc, char** argv) {
  if (command.describe == nullptr && argc > 1 && std::string_view(argv[1]) == "stream") {
    return StreamBenchCommand(argc - 1, argv + 1);
  }
  BenchSettings settings;
  if (auto code = ParseBench(command, argc, argv, settings)) return *code;
  if (settings.detach) return StartDetached(settings.access, SpecsOf(settings), settings.json);
  Output output(STDOUT_FILENO);
  auto session = OpenSession(settings.access);
  auto results = session ? Bench(settings, *session, output).Run()
                         : Result<std::vector<BenchResult>>(Fail(session.error()));
  if (!results) {
    if (settings.json) output.Write(JsonLine(ErrorToJson(results.error())));
    FinishOutput(output, protocol::kExitDone);
    return ReportError(results.error());
  }
  output.Write(settings.json       ? JsonLine(BenchJson(*results))
               : settings.markdown ? BenchMarkdown(*results)
                                   : BenchText(*results));
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
