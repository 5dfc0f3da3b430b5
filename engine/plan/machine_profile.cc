#include "engine/plan/machine_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/atomic_file.h"
#include "engine/base/file.h"
#include "engine/base/strict_json.h"

namespace mk {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr uint64_t kMaxBytes = uint64_t{4} << 20;
constexpr size_t kMostModels = 64;
constexpr size_t kMostDisks = 16;
constexpr double kMostNumber = 1e18;
constexpr double kMostDepth = 4096;

// Takes values out of an object; the first that is missing or cannot be is kept as the error.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  double Real(const char* key, double least) {
    const auto at = object_.find(key);
    if (object_.is_object() && at != object_.end() && at->is_number()) {
      const double value = at->get<double>();
      if (value >= least && value <= kMostNumber) return value;
    }
    Refuse(key);
    return least;
  }
  size_t Count(const char* key, double most) {
    const double value = Real(key, 1);
    if (value > most || value != std::floor(value)) Refuse(key);
    return static_cast<size_t>(std::min(value, most));
  }
  std::string Text(const char* key) {
    const auto at = object_.find(key);
    if (object_.is_object() && at != object_.end() && at->is_string()) return *at;
    Refuse(key);
    return {};
  }
  const json& Inner(const char* key, bool list) {
    static const json empty_list = json::array();
    static const json empty_object = json::object();
    const auto at = object_.is_object() ? object_.find(key) : object_.end();
    if (at != object_.end() && (list ? at->is_array() : at->is_object())) return *at;
    Refuse(key);
    return list ? empty_list : empty_object;
  }
  void Refuse(const std::string& key) {
    if (bad_.empty()) bad_ = key;
  }
  const std::string& bad() const { return bad_; }

 private:
  const json& object_;
  std::string bad_;
};

KernelRates::Rate RateIn(Fields& all, const json& object) {
  Fields fields(object);
  KernelRates::Rate rate;
  rate.dense_gb_per_s = fields.Real("dense_gb_per_s", 1e-6);
  rate.dense_gop_per_s = fields.Real("dense_gop_per_s", 1e-6);
  rate.expert_gb_per_s = fields.Real("expert_gb_per_s", 1e-6);
  rate.expert_gop_per_s = fields.Real("expert_gop_per_s", 1e-6);
  rate.pack_gb_per_s = fields.Real("pack_gb_per_s", 1e-6);
  if (!fields.bad().empty()) all.Refuse(fields.bad());
  return rate;
}

DiskProbe DiskIn(Fields& all, const json& object) {
  Fields fields(object);
  DiskProbe disk;
  disk.device = static_cast<uint64_t>(fields.Real("device", 0));
  disk.direct = object.is_object() && object.value("direct", json()) == json(true);
  disk.timing.latency_s = fields.Real("latency_s", 0);
  disk.timing.bytes_per_s = fields.Real("bytes_per_s", 1);
  disk.timing.depth = fields.Count("depth", kMostDepth);
  if (!fields.bad().empty()) all.Refuse(fields.bad());
  return disk;
}

ModelSpeed SpeedIn(Fields& all, const json& object) {
  Fields fields(object);
  ModelSpeed speed;
  speed.fingerprint = fields.Text("fingerprint");
  const auto precision = ParsePrecision(fields.Text("precision"));
  if (!precision) fields.Refuse("precision");
  speed.precision = precision.value_or(Precision::kExact);
  speed.threads = fields.Count("threads", ThreadPool::kMaxSize);
  speed.decode_s = fields.Real("decode_s", 1e-9);
  speed.prompt_s = fields.Real("prompt_s", 1e-9);
  if (!fields.bad().empty()) all.Refuse(fields.bad());
  return speed;
}

}  // namespace

std::optional<DiskProbe> MachineProfile::Disk(uint64_t device) const {
  for (const DiskProbe& disk : disks) {
    if (disk.device == device) return disk;
  }
  return disks.empty() ? std::nullopt : std::optional(disks.back());
}

void MachineProfile::SetDisk(const DiskProbe& disk) {
  std::erase_if(disks, [&](const DiskProbe& one) { return one.device == disk.device; });
  if (disks.size() == kMostDisks) disks.erase(disks.begin());
  disks.push_back(disk);
}

const ModelSpeed* MachineProfile::Find(const std::string& fingerprint, Precision precision,
                                       size_t threads) const {
  for (const ModelSpeed& model : models) {
    if (model.fingerprint == fingerprint && model.precision == precision &&
        model.threads == threads) {
      return &model;
    }
  }
  return nullptr;
}

void MachineProfile::SetModel(ModelSpeed speed) {
  std::erase_if(models, [&](const ModelSpeed& one) {
    return one.fingerprint == speed.fingerprint && one.precision == speed.precision &&
           one.threads == speed.threads;
  });
  if (models.size() == kMostModels) models.erase(models.begin());
  models.push_back(std::move(speed));
}

std::string ToJsonText(const MachineProfile& profile) {
  ordered_json rates;
  for (size_t p = 0; p < kPrecisions; ++p) {
    const KernelRates::Rate& rate = profile.kernels.rates[p];
    rates[std::string(PrecisionName(static_cast<Precision>(p)))] = {
        {"dense_gb_per_s", rate.dense_gb_per_s},
        {"dense_gop_per_s", rate.dense_gop_per_s},
        {"expert_gb_per_s", rate.expert_gb_per_s},
        {"expert_gop_per_s", rate.expert_gop_per_s},
        {"pack_gb_per_s", rate.pack_gb_per_s}};
  }
  ordered_json costs = ordered_json::object();
  for (const auto& [architecture, cost] : profile.layer_costs) {
    costs[architecture] = {{"step_s", cost.step_s}, {"row_s", cost.row_s}};
  }
  ordered_json disks = ordered_json::array();
  for (const DiskProbe& disk : profile.disks) {
    disks.push_back({{"device", disk.device},
                     {"direct", disk.direct},
                     {"latency_s", disk.timing.latency_s},
                     {"bytes_per_s", disk.timing.bytes_per_s},
                     {"depth", disk.timing.depth}});
  }
  ordered_json models = ordered_json::array();
  for (const ModelSpeed& model : profile.models) {
    models.push_back({{"fingerprint", model.fingerprint},
                      {"precision", PrecisionName(model.precision)},
                      {"threads", model.threads},
                      {"decode_s", model.decode_s},
                      {"prompt_s", model.prompt_s}});
  }
  const ordered_json all = {{"version", kVersion},
                            {"processor", profile.processor},
                            {"threads", profile.kernels.threads},
                            {"read_gb_per_s", profile.kernels.read_gb_per_s},
                            {"kernels", std::move(rates)},
                            {"layer_costs", std::move(costs)},
                            {"disks", std::move(disks)},
                            {"models", std::move(models)}};
  return all.dump(2) + "\n";
}

Result<MachineProfile> ParseProfile(std::string_view text, const std::string& path) {
  const auto bad = [&](const std::string& what) {
    return Fail(ErrorCode::kCorrupt, path + ": " + what, "mk plan --measure makes it anew");
  };
  const auto parsed = ParseStrictJson(text, path);
  if (!parsed) return bad("it is no profile of a machine: " + parsed.error().message);
  Fields fields(*parsed);
  if (fields.Count("version", 1e6) != kVersion || !fields.bad().empty()) {
    return bad("it is no profile of a machine of version " + std::to_string(kVersion));
  }
  MachineProfile profile;
  profile.processor = fields.Text("processor");
  profile.kernels.threads = fields.Count("threads", ThreadPool::kMaxSize);
  profile.kernels.read_gb_per_s = fields.Real("read_gb_per_s", 1e-6);
  const json& kernels = fields.Inner("kernels", false);
  for (size_t p = 0; p < kPrecisions; ++p) {
    const std::string name(PrecisionName(static_cast<Precision>(p)));
    profile.kernels.rates[p] = RateIn(fields, kernels.value(name, json()));
  }
  for (const auto& [architecture, cost] : fields.Inner("layer_costs", false).items()) {
    Fields inner(cost);
    profile.layer_costs[architecture] = {inner.Real("step_s", 0), inner.Real("row_s", 0)};
    if (!inner.bad().empty()) fields.Refuse(inner.bad());
  }
  for (const json& disk : fields.Inner("disks", true)) profile.SetDisk(DiskIn(fields, disk));
  for (const json& model : fields.Inner("models", true)) profile.SetModel(SpeedIn(fields, model));
  if (!fields.bad().empty()) return bad("\"" + fields.bad() + "\" is missing or cannot be");
  return profile;
}

Result<std::optional<MachineProfile>> ReadProfile(const std::string& path) {
  auto text = ReadWholeFile(path, kMaxBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::optional<MachineProfile>();
  if (!text) return Fail(text.error());
  auto profile = ParseProfile(*text, path);
  if (!profile) return Fail(profile.error());
  return std::optional(std::move(*profile));
}

Status WriteProfile(const std::string& path, const MachineProfile& profile) {
  return WriteFileAtomically(path, ToJsonText(profile), 0600);
}

}  // namespace mk
