#include "client/map_answer.h"

namespace mk::client {

Json MapHead(const MapItem& item, const char* status) {
  Json json = {{"index", item.index}};
  if (item.id) json["id"] = *item.id;
  json["status"] = status;
  return json;
}

std::string MapNote(const MapItem& item, const std::string& text) {
  return "mk: item " + std::to_string(item.index + 1) + ": " + text + "\n";
}

bool IsCancelled(const protocol::Body& outcome) {
  if (const auto* done = std::get_if<protocol::RunDone>(&outcome)) {
    return done->finish_reason == "cancelled";
  }
  const auto* error = std::get_if<protocol::Error>(&outcome);
  return error != nullptr && error->code == protocol::ErrorCode::kCancelled;
}

MapAnswer MapFailure(const MapItem& item, const protocol::Error& error, bool json) {
  MapAnswer answer;
  answer.whole = error.code != protocol::ErrorCode::kCancelled;
  if (json) {
    Json told = MapHead(item, answer.whole ? "failed" : "cancelled");
    told.update(ErrorToJson(error));
    answer.text = JsonLine(told);
  } else if (answer.whole) {
    answer.notes = MapNote(item, error.message);
    if (!error.hint.empty()) answer.notes += "  hint: " + error.hint + "\n";
  }
  return answer;
}

}  // namespace mk::client
