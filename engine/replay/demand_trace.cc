#include "engine/replay/demand_trace.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "engine/base/file.h"

namespace mk {
namespace {

constexpr size_t kRecordBytes = 8;
constexpr uint32_t kMostIds = 65'536;
constexpr size_t kMostKeys = size_t{1} << 20;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

uint32_t LoadU32(const std::byte* p) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | std::to_integer<uint32_t>(p[i]);
  return value;
}

}  // namespace

size_t DemandTrace::DistinctKeys() const {
  std::vector<bool> seen(keys());
  size_t count = 0;
  for (const ExpertKey key : demands) {
    if (!seen[key]) ++count;
    seen[key] = true;
  }
  return count;
}

std::vector<size_t> DemandTrace::PassStarts() const {
  std::vector<size_t> starts;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (i == 0 || layer_of(demands[i]) < layer_of(demands[i - 1])) starts.push_back(i);
  }
  starts.push_back(demands.size());
  return starts;
}

DemandTrace DemandTrace::FirstPasses(size_t passes) const {
  DemandTrace first = *this;
  const std::vector<size_t> starts = PassStarts();
  if (passes < starts.size()) first.demands.resize(starts[passes]);
  return first;
}

DemandTrace Interleave(std::span<const DemandTrace> traces) {
  DemandTrace all;
  std::vector<std::vector<size_t>> starts;
  size_t passes = 0;
  for (const DemandTrace& trace : traces) {
    all.layers = std::max(all.layers, trace.layers);
    all.experts = std::max(all.experts, trace.experts);
    starts.push_back(trace.PassStarts());
    passes = std::max(passes, starts.back().size() - 1);
  }
  for (size_t pass = 0; pass < passes; ++pass) {
    for (size_t t = 0; t < traces.size(); ++t) {
      if (pass + 1 >= starts[t].size()) continue;
      for (size_t i = starts[t][pass]; i < starts[t][pass + 1]; ++i) {
        const ExpertKey key = traces[t].demands[i];
        all.demands.push_back(static_cast<ExpertKey>(traces[t].layer_of(key) * all.experts +
                                                     traces[t].expert_of(key)));
      }
    }
  }
  return all;
}

Result<DemandTrace> ParseDemandTrace(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() % kRecordBytes != 0) {
    return Fail(ErrorCode::kCorrupt,
                bytes.empty() ? "the trace is empty"
                              : "the trace has " + std::to_string(bytes.size()) +
                                    " bytes, which is no multiple of 8",
                "a trace has 8 bytes per demand: layer and expert as u32");
  }
  constexpr std::string_view kPicks = "MKTRC002";
  if (std::memcmp(bytes.data(), kPicks.data(), kPicks.size()) == 0) {
    return Fail(ErrorCode::kCorrupt, "it is a trace of picks, MKTRC002, not of demands",
                "record one with mk run --demand-trace");
  }
  DemandTrace trace;
  const size_t count = bytes.size() / kRecordBytes;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t layer = LoadU32(bytes.data() + i * kRecordBytes);
    const uint32_t expert = LoadU32(bytes.data() + i * kRecordBytes + 4);
    trace.layers = std::max<size_t>(trace.layers, size_t{layer} + 1);
    trace.experts = std::max<size_t>(trace.experts, size_t{expert} + 1);
    if (layer >= kMostIds || expert >= kMostIds || trace.keys() > kMostKeys) {
      return Fail(ErrorCode::kCorrupt,
                  "record " + std::to_string(i) + " of the trace names expert " +
                      std::to_string(expert) + " of layer " + std::to_string(layer) +
                      ", which no model has",
                  "give a file of demands as they were recorded");
    }
  }
  trace.demands.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t layer = LoadU32(bytes.data() + i * kRecordBytes);
    const size_t expert = LoadU32(bytes.data() + i * kRecordBytes + 4);
    trace.demands.push_back(static_cast<ExpertKey>(layer * trace.experts + expert));
  }
  return trace;
}

Result<DemandTrace> ReadDemandTrace(const std::string& path) {
  auto bytes = ReadWholeFile(path, kMostBytes);
  if (!bytes) return Fail(bytes.error());
  auto trace = ParseDemandTrace(std::as_bytes(std::span(*bytes)));
  if (trace) return trace;
  Error error = trace.error();
  error.message = path + ": " + error.message;
  return Fail(std::move(error));
}

}  // namespace mk
