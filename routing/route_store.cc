#include "routing/route_store.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "routing/bytes.h"

namespace mk::routing {
namespace {

constexpr std::string_view kMagic = "MKRTS001";
constexpr uint32_t kVersion = 1;

tl::unexpected<protocol::Error> Bad(const std::string& what) {
  return protocol::Fail(protocol::ErrorCode::kBadRequest, what,
                        "only files of the format MKRTS001 can be read");
}

void AppendSession(std::string& bytes, const RouteSession& session) {
  Append(bytes, session.requests);
  Append(bytes, static_cast<uint32_t>(session.layers.size()));
  Append(bytes, session.experts);
  for (const auto& layer : session.layers) {
    Append(bytes, static_cast<uint32_t>(layer.size()));
    for (const auto& [expert, count] : layer) {
      Append(bytes, expert);
      Append(bytes, count);
    }
  }
}

// One layer of a record: experts in ascending order, none beyond what the record says.
bool ReadLayer(Reader& reader, uint32_t experts, std::map<uint32_t, uint32_t>& layer,
               uint64_t& sum) {
  const auto pairs = reader.Take<uint32_t>();
  // A pair has eight bytes: no count is believed that the file is too short for.
  if (!pairs || *pairs > experts || *pairs > reader.rest().size() / 8) return false;
  std::optional<uint32_t> before;
  for (uint32_t i = 0; i < *pairs; ++i) {
    const uint32_t expert = *reader.Take<uint32_t>();
    const uint32_t count = *reader.Take<uint32_t>();
    if (expert >= experts || (before && expert <= *before) || count == 0) return false;
    before = expert;
    layer.emplace_hint(layer.end(), expert, count);
    sum += count;
  }
  return true;
}

std::optional<RouteSession> ReadSession(Reader& reader) {
  const auto requests = reader.Take<uint64_t>();
  const auto layers = reader.Take<uint32_t>();
  const auto experts = reader.Take<uint32_t>();
  if (!experts || *layers > kMaxLayers || *experts > kMaxExperts) return std::nullopt;
  if (*layers > reader.rest().size() / 4) return std::nullopt;
  RouteSession session{*requests, *experts, {}};
  uint64_t sum = 0;
  for (uint32_t l = 0; l < *layers; ++l) {
    if (!ReadLayer(reader, *experts, session.layers.emplace_back(), sum)) return std::nullopt;
  }
  if (sum != session.requests) return std::nullopt;
  return session;
}

}  // namespace

RouteSession SessionOf(std::span<const Pick> demands) {
  RouteSession session;
  for (const Pick& pick : demands) {
    if (session.layers.size() <= pick.layer) session.layers.resize(pick.layer + 1);
    uint32_t& count = session.layers[pick.layer][pick.expert];
    if (count == std::numeric_limits<uint32_t>::max()) continue;
    ++count;
    ++session.requests;
    session.experts = std::max(session.experts, pick.expert + 1);
  }
  return session;
}

void RouteStore::Append(RouteSession session) {
  layers_ = std::max(layers_, static_cast<uint32_t>(session.layers.size()));
  experts_ = std::max(experts_, session.experts);
  sessions_.push_back(std::move(session));
  if (sessions_.size() > kMaxSessions) sessions_.erase(sessions_.begin());
}

std::string RouteStore::Serialize() const {
  std::string bytes(kMagic);
  routing::Append(bytes, kVersion);
  routing::Append(bytes, layers_);
  routing::Append(bytes, experts_);
  routing::Append(bytes, static_cast<uint32_t>(sessions_.size()));
  routing::Append(bytes, uint32_t{0});
  for (const RouteSession& session : sessions_) AppendSession(bytes, session);
  return bytes;
}

protocol::Result<RouteStore> RouteStore::Parse(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return Bad("it is no store of routes: MKRTS001 is missing");
  }
  Reader reader(bytes.substr(kMagic.size()));
  const auto version = reader.Take<uint32_t>();
  if (version && *version != kVersion) {
    return Bad("it is of version " + std::to_string(*version) + ", not 1");
  }
  const auto layers = reader.Take<uint32_t>();
  const auto experts = reader.Take<uint32_t>();
  const auto sessions = reader.Take<uint32_t>();
  if (!reader.Take<uint32_t>()) return Bad("its head is cut off");
  if (*layers > kMaxLayers || *experts > kMaxExperts) {
    return Bad("it claims " + std::to_string(*layers) + " layers of " + std::to_string(*experts) +
               " experts");
  }
  RouteStore store;
  store.layers_ = *layers;
  store.experts_ = *experts;
  for (uint32_t i = 0; i < *sessions; ++i) {
    auto session = ReadSession(reader);
    store.whole_ = session.has_value();
    if (!session) break;
    store.Append(std::move(*session));
  }
  store.whole_ = store.whole_ && reader.rest().empty() && store.layers_ == *layers &&
                 store.experts_ == *experts;
  return store;
}

}  // namespace mk::routing
