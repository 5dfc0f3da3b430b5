#include "engine/plan/prediction.h"

#include <algorithm>
#include <cmath>

#include "engine/plan/synthetic_trace.h"
#include "engine/replay/timed_replay.h"
#include "engine/stream/streamed_experts.h"

namespace mk {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Passes that fill a cache before anything counts, and passes that count.
constexpr size_t kWarmPasses = 96;
constexpr size_t kCountedPasses = 64;

double ToDouble(uint64_t value) {
  return static_cast<double>(value);
}

// Kernels of a machine that differs from the one measured: arithmetic goes with the cores, reads of
// weights with the bandwidth of the memory. Where that is not known, fewer cores read less, but
// more of them no more.
KernelRates::Rate Scale(const KernelRates& kernels, Precision precision,
                        const PlanMachine& machine) {
  const double cores = ToDouble(machine.cores) / ToDouble(kernels.threads);
  const double reads = machine.memory_gb_per_s > 0 ? machine.memory_gb_per_s / kernels.read_gb_per_s
                                                   : std::min(1.0, cores);
  KernelRates::Rate rate = kernels.In(precision);
  rate.dense_gb_per_s *= reads;
  rate.expert_gb_per_s *= reads;
  rate.dense_gop_per_s *= cores;
  rate.expert_gop_per_s *= cores;
  rate.pack_gb_per_s *= std::min(reads, cores);
  return rate;
}

// Distinct experts of a layer that a prompt picks, if all were picked alike.
double DistinctExperts(const ModelInfo& info, size_t tokens) {
  if (info.experts == 0) return 0;
  const double part = ToDouble(info.top_k) / ToDouble(info.experts);
  return ToDouble(info.experts) * (1 - std::pow(1 - part, ToDouble(tokens)));
}

DemandTrace Sized(DemandTrace trace, const ModelFootprint& model) {
  trace.sizes = model.expert_sizes;
  return trace;
}

SyntheticRouting RoutingOf(const ModelFootprint& model, double skew) {
  SyntheticRouting routing;
  routing.experts = model.info.experts;
  routing.top_k = model.info.top_k;
  routing.skew = skew;
  for (size_t l = 0; l < model.info.layers; ++l) {
    routing.in_layer.push_back(model.expert_sizes[l * model.info.experts] > 0);
  }
  return routing;
}

// The same demands with the keys of the model.
Result<DemandTrace> OfModel(const DemandTrace& trace, const ModelFootprint& model) {
  DemandTrace own;
  own.layers = model.info.layers;
  own.experts = model.info.experts;
  for (const ExpertKey key : trace.demands) {
    const size_t layer = trace.layer_of(key);
    const size_t expert = trace.expert_of(key);
    const size_t at = layer * own.experts + expert;
    if (layer >= own.layers || expert >= own.experts || model.expert_sizes[at] == 0) {
      return Fail(ErrorCode::kIncompatible,
                  "the trace asks for expert " + std::to_string(expert) + " of layer " +
                      std::to_string(layer) + ", which the model does not have",
                  "give a trace that was recorded with this model");
    }
    own.demands.push_back(static_cast<ExpertKey>(at));
  }
  return Sized(std::move(own), model);
}

// All experts of the model, those that a trace asks for most first: what a cache holds after a long
// time, about.
std::vector<ExpertKey> MostWanted(const DemandTrace& trace) {
  std::vector<uint32_t> counts(trace.keys());
  for (const ExpertKey key : trace.demands) ++counts[key];
  std::vector<ExpertKey> keys;
  for (size_t key = 0; key < counts.size(); ++key) {
    if (trace.size_of(static_cast<ExpertKey>(key)) > 0) keys.push_back(static_cast<ExpertKey>(key));
  }
  std::stable_sort(keys.begin(), keys.end(),
                   [&](ExpertKey a, ExpertKey b) { return counts[a] > counts[b]; });
  return keys;
}

// What the first of so many experts of a layer take, if all take the same: the last one has to come
// before it is computed.
double AllButOne(double seconds, double experts) {
  return experts > 1 ? seconds * (1 - 1 / experts) : 0;
}

ComputeTime ByRates(const ModelFootprint& model, const MachineProfile& profile,
                    const PlanMachine& machine, const PlanQuestion& question) {
  const KernelRates::Rate rate = Scale(profile.kernels, question.precision, machine);
  const TokenWork& work = model.In(question.precision).work;
  const ModelInfo& info = model.info;
  LayerCost layer;
  if (const auto cost = profile.layer_costs.find(info.architecture);
      cost != profile.layer_costs.end()) {
    layer = cost->second;
  }
  const double layers = ToDouble(info.layers);
  const double top_k = ToDouble(info.top_k);
  ComputeTime time;
  const double spine_s = ToDouble(work.spine_bytes) / (rate.dense_gb_per_s * 1e9);
  const double experts_s = ToDouble(work.expert_bytes) / (rate.expert_gb_per_s * 1e9);
  time.decode_s = spine_s + 2 * ToDouble(work.state_bytes) / (rate.dense_gb_per_s * 1e9) +
                  experts_s + layers * layer.step_s;
  time.decode_overlap_s = AllButOne(experts_s, top_k);
  const double dense = ToDouble(work.multiply_adds - model.expert_multiply_adds);
  for (size_t done = 0; done < question.prompt_tokens;) {
    const size_t n = std::min(question.prompt_tokens - done, kMaxForwardTokens);
    const double rows = ToDouble(n);
    const double pairs = rows * (ToDouble(done) + (rows + 1) / 2);
    const double dense_s = 2 * (dense * rows + ToDouble(work.context_multiply_adds) * pairs) /
                           (rate.dense_gop_per_s * 1e9);
    // Every expert is read once, however few rows it has.
    const double distinct = DistinctExperts(info, n);
    const double products_s =
        2 * ToDouble(model.expert_multiply_adds) * rows / (rate.expert_gop_per_s * 1e9);
    const double expert_s = top_k > 0 ? std::max(products_s, experts_s * distinct / top_k) : 0;
    time.prompt_s +=
        std::max(dense_s, spine_s) + expert_s + layers * (layer.step_s + rows * layer.row_s);
    time.prompt_overlap_s += AllButOne(expert_s, distinct);
    done += n;
  }
  return time;
}

class Planner {
 public:
  Planner(const ModelFootprint& model, const MachineProfile& profile, const PlanMachine& machine,
          const PlanQuestion& question)
      : model_(model), profile_(profile), machine_(machine), question_(question) {
    for (const uint64_t size : model.expert_sizes)
      largest_expert_ = std::max(largest_expert_, size);
  }

  Result<ModelPlanned> Run() {
    plan_.memory = PredictMemory(model_, question_.precision);
    plan_.compute = PredictCompute(model_, profile_, machine_, question_);
    Judge();
    PredictLoads();
    if (model_.info.experts == 0) return std::move(plan_);
    if (Status ready = PrepareTraces(); !ready) return Fail(ready.error());
    for (const double share : question_.shares) {
      const double bytes = share * ToDouble(plan_.memory.experts);
      plan_.rows.push_back(Row(share, static_cast<uint64_t>(bytes)));
    }
    if (plan_.verdict == ModelPlanned::Verdict::kStream) {
      const uint64_t room = machine_.ram_bytes - plan_.memory.streamed(0);
      const uint64_t budget = std::max(room / kMiB * kMiB, plan_.memory.smallest_cache);
      plan_.best = Row(ToDouble(budget) / ToDouble(plan_.memory.experts), budget);
    }
    return std::move(plan_);
  }

 private:
  void Judge() {
    const PlanMemory& memory = plan_.memory;
    using Verdict = ModelPlanned::Verdict;
    if (memory.whole() <= machine_.ram_bytes) {
      plan_.verdict = Verdict::kResident;
    } else if (model_.info.experts > 0 &&
               memory.streamed(memory.smallest_cache) <= machine_.ram_bytes) {
      plan_.verdict = Verdict::kStream;
    } else {
      for (const Precision precision : {Precision::kBf16, Precision::kQ8}) {
        const PlanMemory other = PredictMemory(model_, precision);
        if (other.streamed(other.smallest_cache) <= machine_.ram_bytes) {
          plan_.smaller.push_back(precision);
        }
      }
    }
  }

  // Reading and packing go on at once; the slower of them counts.
  void PredictLoads() {
    const KernelRates::Rate rate = Scale(profile_.kernels, question_.precision, machine_);
    const double packing =
        ToDouble(model_.In(Precision::kExact).spine_bytes) / (rate.pack_gb_per_s * 1e9);
    const auto load = [&](uint64_t bytes) {
      return std::max(ToDouble(bytes) / machine_.disk.bytes_per_s, packing);
    };
    plan_.resident_load_s = load(model_.spine_file_bytes + model_.expert_file_bytes);
    plan_.load_s = plan_.verdict == ModelPlanned::Verdict::kResident
                       ? plan_.resident_load_s
                       : load(model_.spine_file_bytes);
  }

  Status PrepareTraces() {
    if (question_.trace != nullptr) {
      Result<DemandTrace> own = OfModel(*question_.trace, model_);
      if (!own) return Fail(own.error());
      decoding_ = std::move(*own);
      // The first half fills the cache.
      warm_up_ = (decoding_.PassStarts().size() - 1) / 2;
    } else {
      const std::vector<size_t> tokens(kWarmPasses + kCountedPasses, 1);
      decoding_ = Sized(MakeTrace(RoutingOf(model_, question_.skew), tokens), model_);
      warm_up_ = kWarmPasses;
      preload_ = MostWanted(decoding_.FirstPasses(kWarmPasses));
    }
    std::vector<size_t> pieces;
    for (size_t left = question_.prompt_tokens; left > 0; left -= pieces.back()) {
      pieces.push_back(std::min(left, kMaxForwardTokens));
    }
    prompt_ = Sized(MakeTrace(RoutingOf(model_, question_.skew), pieces), model_);
    prompt_pieces_ = pieces.size();
    return {};
  }

  BudgetRow Row(double share, uint64_t budget) const {
    BudgetRow row;
    row.share = share;
    row.cache_bytes = budget;
    row.memory_bytes = plan_.memory.streamed(budget);
    row.fits = row.memory_bytes <= machine_.ram_bytes && budget >= plan_.memory.smallest_cache;
    TimedOptions options;
    options.policy = question_.policy;
    options.budget = StreamedExperts::CacheBytes(largest_expert_, budget);
    options.disk = machine_.disk;
    options.compute_s = plan_.compute.decode_s;
    options.overlap_s = plan_.compute.decode_overlap_s;
    options.plan_reads = question_.plan_reads;
    // Half of what buffers may take; see StreamedExperts::CacheBytes.
    options.bytes_in_flight = (budget - options.budget) / 2;
    options.warm_up = warm_up_;
    options.preload = preload_;
    const TimedReplay decoding = ReplayTimed(decoding_, options);
    if (decoding.demands > 0) row.hit_rate = ToDouble(decoding.hits) / ToDouble(decoding.demands);
    row.stall_s = decoding.MeanStall();
    row.stall_p95_s = decoding.StallQuantile(0.95);
    row.decode_tokens_per_s = 1 / (plan_.compute.decode_s + row.stall_s);
    options.warm_up = 0;
    options.preload.clear();
    options.compute_s = plan_.compute.prompt_s / ToDouble(prompt_pieces_);
    options.overlap_s = plan_.compute.prompt_overlap_s / ToDouble(prompt_pieces_);
    const TimedReplay prompt = ReplayTimed(prompt_, options);
    row.prompt_s = plan_.compute.prompt_s + prompt.MeanStall() * ToDouble(prompt_pieces_);
    row.prompt_tokens_per_s = ToDouble(question_.prompt_tokens) / row.prompt_s;
    return row;
  }

  const ModelFootprint& model_;
  const MachineProfile& profile_;
  const PlanMachine& machine_;
  const PlanQuestion& question_;
  ModelPlanned plan_;
  DemandTrace decoding_;
  DemandTrace prompt_;
  std::vector<ExpertKey> preload_;
  uint64_t largest_expert_ = 0;  // in the file
  size_t warm_up_ = 0;
  size_t prompt_pieces_ = 0;
};

}  // namespace

ComputeTime PredictCompute(const ModelFootprint& model, const MachineProfile& profile,
                           const PlanMachine& machine, const PlanQuestion& question) {
  ComputeTime time = ByRates(model, profile, machine, question);
  const ModelSpeed* run =
      machine.memory_gb_per_s > 0
          ? nullptr
          : profile.Find(model.info.fingerprint, question.precision, machine.cores);
  if (run == nullptr) return time;
  // The rates still tell which part of it the experts are.
  const double prompt_s = run->prompt_s * ToDouble(question.prompt_tokens);
  time.decode_overlap_s *= run->decode_s / time.decode_s;
  time.prompt_overlap_s *= prompt_s / time.prompt_s;
  time.decode_s = run->decode_s;
  time.prompt_s = prompt_s;
  time.measured = true;
  return time;
}

PlanMemory PredictMemory(const ModelFootprint& model, Precision precision) {
  PlanMemory memory;
  memory.tables = model.table_bytes;
  memory.spine = model.In(precision).spine_bytes;
  memory.sequence = model.sequence_bytes;
  memory.scratch = model.scratch_bytes;
  memory.experts = model.expert_bytes;
  memory.stream_tables = model.stream_table_bytes;
  memory.smallest_cache = model.smallest_stream_budget;
  return memory;
}

Result<ModelPlanned> PlanModel(const ModelFootprint& model, const MachineProfile& profile,
                               const PlanMachine& machine, const PlanQuestion& question) {
  return Planner(model, profile, machine, question).Run();
}

}  // namespace mk
