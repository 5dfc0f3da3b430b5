#include "daemon/plan_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/memory_text.h"

namespace mk::daemon {
namespace {

using nlohmann::ordered_json;
using Verdict = ModelPlanned::Verdict;

constexpr uint64_t kMiB = uint64_t{1} << 20;

template <typename... Values>
std::string Format(const char* format, Values... values) {
  std::array<char, 320> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

uint64_t Sum(const std::vector<uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

std::string TimeText(double seconds) {
  if (seconds < 1e-3) return Format("%.0f us", seconds * 1e6);
  if (seconds < 1) return Format("%.3g ms", seconds * 1e3);
  if (seconds < 120) return Format("%.3g s", seconds);
  if (seconds < 7200) return Format("%.3g min", seconds / 60);
  return Format("%.3g h", seconds / 3600);
}

std::string RateText(double per_s) {
  return Format(per_s < 10 ? "%.3g" : "%.0f", per_s);
}

// As a word of a shell.
std::string Quoted(const std::string& text) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:+,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string Command(const PlanReport& report) {
  if (report.plan.verdict == Verdict::kTooLarge) return {};
  std::string command = "mk load " + (report.is_file ? Quoted(report.model) : "MODEL");
  command += " --precision " + std::string(PrecisionName(report.question.precision));
  if (report.plan.verdict == Verdict::kStream) {
    // Whole MiB, rounded up where the smallest cache is meant.
    command += " --stream --stream-ram " +
               std::to_string((report.plan.best->cache_bytes + kMiB - 1) / kMiB) + "MiB";
  }
  return command;
}

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kResident:
      return "resident";
    case Verdict::kStream:
      return "stream";
    case Verdict::kTooLarge:
      break;
  }
  return "too_large";
}

std::string HeadText(const PlanReport& report) {
  const ModelFootprint& model = report.footprint;
  const ModelInfo& info = model.info;
  std::string text = report.model + ": " + info.architecture + ", " + std::to_string(info.layers) +
                     " layers; on disk " + BytesText(model.spine_file_bytes) +
                     " of dense weights, " + BytesText(model.expert_file_bytes) + " of experts";
  if (info.experts > 0) {
    text += " (" + std::to_string(info.top_k) + " of " + std::to_string(info.experts) +
            " per layer and token: " +
            BytesText(model.In(report.question.precision).work.expert_bytes) + ")";
  }
  text += "\nmachine: " + BytesText(report.machine.ram_bytes) + " for the model, " +
          std::to_string(report.machine.cores) + (report.machine.cores == 1 ? " core" : " cores");
  text += Format(", memory %.1f GB/s, disk %s and %.0f MB/s with %zu reads at once",
                 report.machine.memory_gb_per_s > 0 ? report.machine.memory_gb_per_s
                                                    : report.profile.kernels.read_gb_per_s,
                 TimeText(report.machine.disk.latency_s).c_str(),
                 report.machine.disk.bytes_per_s * 1e-6, report.machine.disk.depth);
  if (!report.disk_given && !report.disk_direct) {
    text += " (measured through the page cache: no direct reads here)";
  }
  text += "\nprecision " + std::string(PrecisionName(report.question.precision)) +
          ", a sequence of " + std::to_string(model.sequence_tokens) + " tokens\n";
  return text;
}

std::string MemoryText(const PlanReport& report) {
  std::string text = "\nmemory           exact       bf16         q8\n";
  const auto line = [&](const char* name, uint64_t PlanMemory::*part) {
    text += Format("%-11s", name);
    for (size_t p = 0; p < kPrecisions; ++p) {
      const PlanMemory memory = PredictMemory(report.footprint, static_cast<Precision>(p));
      text += Format(" %10s", BytesText(memory.*part).c_str());
    }
    text += "\n";
  };
  line("dense", &PlanMemory::spine);
  line("tables", &PlanMemory::tables);
  line("sequence", &PlanMemory::sequence);
  line("scratch", &PlanMemory::scratch);
  line("experts", &PlanMemory::experts);
  return text;
}

std::string SpeedText(const PlanReport& report) {
  const ModelPlanned& plan = report.plan;
  const ComputeTime& compute = plan.compute;
  std::string text = "\nload: " + TimeText(plan.resident_load_s) + " for all of it";
  if (report.footprint.info.experts > 0) {
    const double streamed = plan.verdict == Verdict::kResident ? 0 : plan.load_s;
    if (streamed > 0) text += ", " + TimeText(streamed) + " without experts";
  }
  text += "\nwork: " + TimeText(compute.decode_s) + " per token (" +
          RateText(1 / compute.decode_s) + " tok/s), " + TimeText(compute.prompt_s) +
          " for a prompt of " + std::to_string(report.question.prompt_tokens) + " (" +
          RateText(static_cast<double>(report.question.prompt_tokens) / compute.prompt_s) +
          " tok/s), " +
          (compute.measured ? "as this model ran here" : "from the rates of the kernels") + "\n";
  return text;
}

std::string RowText(const BudgetRow& row) {
  return Format("%6.1f %% %10s %10s %5s %7.1f %10.1f %10.1f %9s %9s\n", row.share * 100,
                BytesText(row.cache_bytes).c_str(), BytesText(row.memory_bytes).c_str(),
                row.fits ? "yes" : "no", row.hit_rate * 100, row.stall_s * 1e3,
                row.stall_p95_s * 1e3, RateText(row.decode_tokens_per_s).c_str(),
                RateText(row.prompt_tokens_per_s).c_str());
}

std::string RowsText(const PlanReport& report) {
  if (report.plan.rows.empty()) return {};
  std::string text = "\nexperts streamed, nothing fetched ahead; cache " +
                     std::string(CachePolicyName(report.question.policy)) + "; demands ";
  text += report.trace.empty() ? Format("at random, skew %.2g", report.question.skew)
                               : "of " + report.trace;
  text +=
      "\n   cache       size  in memory  fits  hits %    wait ms     p95 ms  decode/s  prompt/s\n";
  for (const BudgetRow& row : report.plan.rows) text += RowText(row);
  if (report.plan.best) text += RowText(*report.plan.best);
  return text;
}

std::string AdviceText(const PlanReport& report) {
  const ModelPlanned& plan = report.plan;
  const std::string fixed = BytesText(plan.memory.streamed(0));
  std::string text;
  switch (plan.verdict) {
    case Verdict::kResident:
      text = "\nall of it fits: " + BytesText(plan.memory.whole()) + " of " +
             BytesText(report.machine.ram_bytes) + "\n";
      break;
    case Verdict::kStream:
      text = "\nit does not fit whole: " + fixed + " without experts leaves room for " +
             BytesText(plan.best->cache_bytes) + " of " + BytesText(plan.memory.experts) +
             " of them\n";
      break;
    case Verdict::kTooLarge:
      return {};
  }
  return text + "next: " + Command(report) + "\n";
}

ordered_json ToJson(const BudgetRow& row) {
  return {{"share", row.share},
          {"cache_bytes", row.cache_bytes},
          {"memory_bytes", row.memory_bytes},
          {"fits", row.fits},
          {"hit_rate", row.hit_rate},
          {"stall_ms_per_token", row.stall_s * 1e3},
          {"stall_ms_p95", row.stall_p95_s * 1e3},
          {"decode_tokens_per_s", row.decode_tokens_per_s},
          {"prompt_ms", row.prompt_s * 1e3},
          {"prompt_tokens_per_s", row.prompt_tokens_per_s}};
}

ordered_json MemoryJson(const PlanReport& report) {
  ordered_json json;
  for (size_t p = 0; p < kPrecisions; ++p) {
    const auto precision = static_cast<Precision>(p);
    const PlanMemory memory = PredictMemory(report.footprint, precision);
    json[std::string(PrecisionName(precision))] = {{"spine", memory.spine},
                                                   {"tables", memory.tables},
                                                   {"sequence", memory.sequence},
                                                   {"scratch", memory.scratch},
                                                   {"experts", memory.experts},
                                                   {"stream_tables", memory.stream_tables},
                                                   {"smallest_cache", memory.smallest_cache}};
  }
  return json;
}

}  // namespace

std::string ToText(const PlanReport& report) {
  return HeadText(report) + MemoryText(report) + SpeedText(report) + RowsText(report) +
         AdviceText(report);
}

ordered_json ToJson(const PlanReport& report) {
  const ModelFootprint& model = report.footprint;
  const ModelPlanned& plan = report.plan;
  ordered_json rows = ordered_json::array();
  for (const BudgetRow& row : plan.rows) rows.push_back(ToJson(row));
  ordered_json json = {
      {"schema", 1},
      {"model",
       {{"name", report.model},
        {"architecture", model.info.architecture},
        {"layers", model.info.layers},
        {"experts", model.info.experts},
        {"top_k", model.info.top_k},
        {"parameters", model.info.parameters},
        {"spine_file_bytes", model.spine_file_bytes},
        {"expert_file_bytes", model.expert_file_bytes},
        {"expert_read_bytes", Sum(model.expert_read_bytes)},
        {"expert_bytes_per_token", model.In(report.question.precision).work.expert_bytes}}},
      {"machine",
       {{"ram_bytes", report.machine.ram_bytes},
        {"cores", report.machine.cores},
        {"memory_gb_per_s", report.machine.memory_gb_per_s > 0
                                ? report.machine.memory_gb_per_s
                                : report.profile.kernels.read_gb_per_s},
        {"disk_latency_ms", report.machine.disk.latency_s * 1e3},
        {"disk_mb_per_s", report.machine.disk.bytes_per_s * 1e-6},
        {"disk_depth", report.machine.disk.depth},
        {"disk_direct", report.disk_direct}}},
      {"precision", PrecisionName(report.question.precision)},
      {"policy", CachePolicyName(report.question.policy)},
      {"sequence_tokens", model.sequence_tokens},
      {"prompt_tokens", report.question.prompt_tokens},
      {"trace", nullptr},
      {"skew", nullptr},
      {"memory", MemoryJson(report)},
      {"load_ms", {{"whole", plan.resident_load_s * 1e3}, {"next", plan.load_s * 1e3}}},
      {"compute",
       {{"decode_ms", plan.compute.decode_s * 1e3},
        {"prompt_ms", plan.compute.prompt_s * 1e3},
        {"decode_overlap_ms", plan.compute.decode_overlap_s * 1e3},
        {"prompt_overlap_ms", plan.compute.prompt_overlap_s * 1e3},
        {"measured", plan.compute.measured}}},
      {"budgets", std::move(rows)},
      {"best", plan.best ? ToJson(*plan.best) : ordered_json()},
      {"verdict", VerdictName(plan.verdict)},
      {"next", nullptr}};
  if (report.trace.empty()) {
    json["skew"] = report.question.skew;
  } else {
    json["trace"] = report.trace;
  }
  if (const std::string command = Command(report); !command.empty()) json["next"] = command;
  return json;
}

std::optional<Error> Refusal(const PlanReport& report) {
  const ModelPlanned& plan = report.plan;
  if (plan.verdict != Verdict::kTooLarge) return std::nullopt;
  const bool streams = report.footprint.info.experts > 0;
  const uint64_t least =
      streams ? plan.memory.streamed(plan.memory.smallest_cache) : plan.memory.fixed();
  Error error{ErrorCode::kOutOfMemory,
              report.model + " does not fit: it needs " + BytesText(least) + " in " +
                  std::string(PrecisionName(report.question.precision)) +
                  (streams ? ", with its experts streamed" : "") + ", there are " +
                  BytesText(report.machine.ram_bytes),
              "more memory is needed, or a smaller model"};
  if (!plan.smaller.empty()) {
    error.hint = "it fits in " + std::string(PrecisionName(plan.smaller.front())) +
                 ": mk plan --precision " + std::string(PrecisionName(plan.smaller.front()));
  }
  return error;
}

std::string ToText(const MachineProfile& profile, const std::string& path) {
  std::string text = profile.processor + ", " + std::to_string(profile.kernels.threads) +
                     (profile.kernels.threads == 1 ? " core" : " cores") +
                     Format(": memory %.1f GB/s\n", profile.kernels.read_gb_per_s);
  text += "\nkernels  dense GB/s  dense GOP/s  experts GB/s  experts GOP/s  packing GB/s\n";
  for (size_t p = 0; p < kPrecisions; ++p) {
    const KernelRates::Rate& rate = profile.kernels.rates[p];
    text += Format("%-7s %11.1f %12.0f %13.1f %14.0f %13.1f\n",
                   std::string(PrecisionName(static_cast<Precision>(p))).c_str(),
                   rate.dense_gb_per_s, rate.dense_gop_per_s, rate.expert_gb_per_s,
                   rate.expert_gop_per_s, rate.pack_gb_per_s);
  }
  for (const DiskProbe& disk : profile.disks) {
    text += Format("\ndisk %llu: %s, %.0f MB/s with %zu reads at once%s\n",
                   static_cast<unsigned long long>(disk.device),
                   TimeText(disk.timing.latency_s).c_str(), disk.timing.bytes_per_s * 1e-6,
                   disk.timing.depth, disk.direct ? "" : " (through the page cache)");
  }
  return text + "\nkept in " + path + "\n";
}

}  // namespace mk::daemon
