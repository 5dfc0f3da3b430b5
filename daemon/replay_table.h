// What `mk cachereplay` shows of a trace: one row per size of a cache, as text or as JSON.

#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/replay/disk_model.h"
#include "engine/replay/replay.h"
#include "engine/replay/session_predictor.h"
#include "engine/replay/timed_replay.h"

namespace mk::daemon {

inline constexpr std::array kReplayPolicies = {CachePolicyKind::kLru, CachePolicyKind::kLfu,
                                               CachePolicyKind::kArc, CachePolicyKind::kAged};

// How long things take.
struct ReplayClock {
  DiskTiming disk;
  double compute_s = 0;  // of a pass
};

struct ReplaySettings {
  std::vector<uint64_t> capacities;
  bool in_bytes = false;  // capacities, and sizes of experts; else entries
  size_t top_k = 16;
  size_t predict = 16;
  std::optional<ReplayClock> clock;  // only in bytes
};

struct ReplayRow {
  uint64_t capacity = 0;
  std::array<uint64_t, kReplayPolicies.size()> hits{};
  PrefetchReplay markov;
  uint64_t belady = 0;
  // With a clock: of the policies, then of Markov.
  std::vector<TimedReplay> timed;
};

struct ReplayTable {
  std::string name;
  uint64_t requests = 0;
  uint64_t distinct = 0;
  size_t layers = 0;
  size_t experts = 0;
  uint64_t passes = 0;
  std::vector<ReplayRow> rows;
};

ReplayTable MakeReplayTable(const std::string& name, const DemandTrace& trace,
                            const ReplaySettings& settings);
std::string ToText(const ReplayTable& table, const ReplaySettings& settings);
nlohmann::ordered_json ToJson(const ReplayTable& table, const ReplaySettings& settings);

// A trace against sessions of before (SessionPredictor), in its first passes.
struct SessionRow {
  uint64_t capacity = 0;
  uint64_t lru = 0;
  uint64_t markov = 0;
  PrefetchReplay sessions;
};

struct SessionTable {
  std::string name;
  uint64_t passes = 0;
  uint64_t requests = 0;
  std::optional<SessionPredictor::Match> match;
  std::optional<size_t> by_overlap;  // the session that another measure would have picked
  std::vector<SessionRow> rows;
};

SessionTable MakeSessionTable(const std::string& name, const DemandTrace& trace,
                              const std::vector<SessionHistogram>& sessions, size_t first_passes,
                              const ReplaySettings& settings);
std::string ToText(const SessionTable& table, const ReplaySettings& settings);
nlohmann::ordered_json ToJson(const SessionTable& table, const ReplaySettings& settings);

}  // namespace mk::daemon
