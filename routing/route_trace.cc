#include "routing/route_trace.h"

#include <algorithm>
#include <map>
#include <set>

#include "routing/bytes.h"

namespace mk::routing {
namespace {

constexpr std::string_view kMagic = "MKTRC002";
constexpr uint32_t kHeadBytes = 64;
constexpr size_t kRecordBytes = 10;

tl::unexpected<protocol::Error> Bad(const std::string& what) {
  return protocol::Fail(protocol::ErrorCode::kBadRequest, what,
                        "only files of the format MKTRC002 can be read");
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// The union of a batch, a sweep over its layers.
void AppendBatch(std::span<const TraceRecord> batch, std::vector<Pick>& demands) {
  std::map<uint16_t, std::vector<uint16_t>> layers;
  std::set<Pick> seen;
  for (const TraceRecord& one : batch) {
    if (seen.insert({one.layer, one.expert}).second) layers[one.layer].push_back(one.expert);
  }
  for (const auto& [layer, experts] : layers) {
    for (const uint16_t expert : experts) demands.push_back({layer, expert});
  }
}

}  // namespace

std::array<uint8_t, 16> FingerprintBytes(std::string_view hex) {
  std::array<uint8_t, 16> bytes{};
  if (hex.size() != 2 * bytes.size()) return {};
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return {};
    bytes[i] = static_cast<uint8_t>(16 * high + low);
  }
  return bytes;
}

std::string SerializeTrace(const RouteTrace& trace) {
  std::string bytes(kMagic);
  bytes.reserve(kHeadBytes + trace.records.size() * kRecordBytes);
  Append(bytes, kHeadBytes);
  Append(bytes, trace.head.top_k);
  Append(bytes, trace.head.layers);
  Append(bytes, trace.head.experts);
  Append(bytes, trace.head.expert_bytes);
  for (const uint8_t byte : trace.head.fingerprint) Append(bytes, byte);
  Append(bytes, uint64_t{trace.records.size()});
  Append(bytes, uint64_t{0});
  for (const TraceRecord& record : trace.records) {
    Append(bytes, record.position);
    Append(bytes, record.layer);
    Append(bytes, record.expert);
    Append(bytes, record.flags);
    Append(bytes, record.session);
  }
  return bytes;
}

protocol::Result<RouteTrace> ParseTrace(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) return Bad("it is no trace: MKTRC002 is missing");
  if (bytes.size() < kHeadBytes) return Bad("its head is cut off");
  Reader reader(bytes.substr(kMagic.size()));
  if (const uint32_t head = *reader.Take<uint32_t>(); head != kHeadBytes) {
    return Bad("its head has " + std::to_string(head) + " bytes, not 64");
  }
  RouteTrace trace;
  trace.head.top_k = *reader.Take<uint32_t>();
  trace.head.layers = *reader.Take<uint32_t>();
  trace.head.experts = *reader.Take<uint32_t>();
  trace.head.expert_bytes = *reader.Take<uint64_t>();
  for (uint8_t& byte : trace.head.fingerprint) byte = *reader.Take<uint8_t>();
  const uint64_t records = *reader.Take<uint64_t>();
  reader.Take<uint64_t>();
  const size_t body = reader.rest().size();
  if (body % kRecordBytes != 0 || records != body / kRecordBytes) {
    return Bad("it claims " + std::to_string(records) + " records and has " + std::to_string(body) +
               " bytes of them");
  }
  trace.records.resize(body / kRecordBytes);
  for (TraceRecord& record : trace.records) {
    record.position = *reader.Take<uint32_t>();
    record.layer = *reader.Take<uint16_t>();
    record.expert = *reader.Take<uint16_t>();
    record.flags = *reader.Take<uint8_t>();
    record.session = *reader.Take<uint8_t>();
    if (record.layer >= trace.head.layers || record.expert >= trace.head.experts) {
      return Bad("it has a pick of layer " + std::to_string(record.layer) + ", expert " +
                 std::to_string(record.expert) + ", which its head does not have");
    }
  }
  return trace;
}

std::vector<Pick> DemandsOf(std::span<const TraceRecord> records) {
  std::vector<Pick> demands;
  for (size_t i = 0; i < records.size();) {
    if ((records[i].flags & kTracePrompt) == 0) {
      demands.push_back({records[i].layer, records[i].expert});
      ++i;
      continue;
    }
    size_t end = i;
    while (end < records.size() && (records[end].flags & kTracePrompt) != 0) ++end;
    AppendBatch(records.subspan(i, end - i), demands);
    i = end;
  }
  return demands;
}

std::string SerializeDemands(std::span<const Pick> demands) {
  std::string bytes;
  bytes.reserve(demands.size() * 8);
  for (const Pick& pick : demands) {
    Append(bytes, pick.layer);
    Append(bytes, pick.expert);
  }
  return bytes;
}

protocol::Result<std::vector<Pick>> ReadDemands(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) == kMagic) {
    auto trace = ParseTrace(bytes);
    if (!trace) return protocol::Fail(std::move(trace.error()));
    if (trace->records.empty()) return Bad("it holds no picks");
    return DemandsOf(trace->records);
  }
  constexpr size_t kDemandBytes = 8;
  const auto bad = [](const std::string& what) {
    return protocol::Fail(protocol::ErrorCode::kBadRequest, what,
                          "record one with mk run --demand-trace");
  };
  if (bytes.empty()) return bad("the trace is empty");
  if (bytes.size() % kDemandBytes != 0) {
    return bad("the trace has " + std::to_string(bytes.size()) +
               " bytes, which is no multiple of 8");
  }
  std::vector<Pick> demands(bytes.size() / kDemandBytes);
  Reader reader(bytes);
  uint32_t layers = 0;
  uint32_t experts = 0;
  for (size_t i = 0; i < demands.size(); ++i) {
    Pick& pick = demands[i];
    pick.layer = *reader.Take<uint32_t>();
    pick.expert = *reader.Take<uint32_t>();
    layers = std::max(layers, pick.layer);
    experts = std::max(experts, pick.expert);
    if (layers >= kMaxLayers || experts >= kMaxExperts ||
        (uint64_t{layers} + 1) * (uint64_t{experts} + 1) > kMaxPairs) {
      return bad("record " + std::to_string(i) + " of the trace names expert " +
                 std::to_string(pick.expert) + " of layer " + std::to_string(pick.layer) +
                 ", which no model has");
    }
  }
  return demands;
}

}  // namespace mk::routing
