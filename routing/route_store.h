// RouteStore: which experts sessions of a model asked for, `<model file>.routes` of the reference
// engine, format MKRTS001.
//
// A session is a histogram of demands per layer. A store holds the last 32.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "routing/pick.h"

namespace mk::routing {

struct RouteSession {
  uint64_t requests = 0;  // sum of all counts
  uint32_t experts = 0;   // largest expert + 1
  // [layer]: count by expert. As long as the largest layer + 1.
  std::vector<std::map<uint32_t, uint32_t>> layers;
  bool operator==(const RouteSession&) const = default;
};

RouteSession SessionOf(std::span<const Pick> demands);

class RouteStore {
 public:
  static constexpr size_t kMaxSessions = 32;

  // Drops the oldest beyond kMaxSessions.
  void Append(RouteSession session);
  const std::vector<RouteSession>& sessions() const { return sessions_; }
  // Largest layer and expert + 1 of all sessions that were ever in it.
  uint32_t layers() const { return layers_; }
  uint32_t experts() const { return experts_; }
  // All records of the file could be read.
  bool whole() const { return whole_; }

  std::string Serialize() const;
  // A record that cannot be read ends the list: what is before it is kept. Errors: kBadRequest for
  // another magic or version, or a header that is cut off.
  static protocol::Result<RouteStore> Parse(std::string_view bytes);

 private:
  uint32_t layers_ = 0;
  uint32_t experts_ = 0;
  std::vector<RouteSession> sessions_;
  bool whole_ = true;
};

}  // namespace mk::routing
