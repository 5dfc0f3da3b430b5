// RouteTrace: the experts of a run in the order in which routers picked them, format MKTRC002, and
// the trace of demands of the reference engine.
//
// MKTRC002, little-endian: a head of 64 bytes, then records of 10.
//
//   0  8  magic "MKTRC002"           24  8  bytes of an expert; 0: not known
//   8  4  bytes of the head, 64      32 16  fingerprint of the model
//  12  4  experts per token, K       48  8  number of records
//  16  4  layers                     56  8  0
//  20  4  experts per layer
//
//   u32 position of the token, u16 layer, u16 expert, u8 flags (1 hit, 2 miss, 4 shadow, 8 of the
//   prompt), u8 slot of the session. By position, then layer, then rank of the pick.
//
// The reference's trace has no head: u32 layer, u32 expert for every demand on its expert cache.
// Tokens of an answer demand their picks layer by layer. A prompt is read as one batch: layer by
// layer, every expert once, in the order in which positions first pick it.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "routing/pick.h"

namespace mk::routing {

struct TraceHead {
  uint32_t top_k = 0;
  uint32_t layers = 0;
  uint32_t experts = 0;
  uint64_t expert_bytes = 0;
  std::array<uint8_t, 16> fingerprint{};
  bool operator==(const TraceHead&) const = default;
};

inline constexpr uint8_t kTraceHit = 1;
inline constexpr uint8_t kTraceMiss = 2;
inline constexpr uint8_t kTraceShadow = 4;
inline constexpr uint8_t kTracePrompt = 8;

struct TraceRecord {
  uint32_t position = 0;
  uint16_t layer = 0;
  uint16_t expert = 0;
  uint8_t flags = 0;
  uint8_t session = 0;
  bool operator==(const TraceRecord&) const = default;
};

struct RouteTrace {
  TraceHead head;
  std::vector<TraceRecord> records;
  bool operator==(const RouteTrace&) const = default;
};

// 32 hex digits; anything else gives zeros.
std::array<uint8_t, 16> FingerprintBytes(std::string_view hex);

std::string SerializeTrace(const RouteTrace& trace);
// Errors: kBadRequest: magic, length, a layer or an expert that the head does not have.
protocol::Result<RouteTrace> ParseTrace(std::string_view bytes);

// The demands of the reference engine. Records of the prompt that follow each other are one batch.
std::vector<Pick> DemandsOf(std::span<const TraceRecord> records);
// The reference's file: 8 bytes for each.
std::string SerializeDemands(std::span<const Pick> demands);
// Demands from either kind of file. Errors: as ParseTrace; kBadRequest for a file of demands that
// is empty, cut off, or names layers or experts that no model has.
protocol::Result<std::vector<Pick>> ReadDemands(std::string_view bytes);

}  // namespace mk::routing
