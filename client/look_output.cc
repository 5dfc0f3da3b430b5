#include "client/look_output.h"

namespace mk::client {

std::string LookOutput::Take(const protocol::Body& body) {
  if (const auto* lens = std::get_if<protocol::LensChunk>(&body)) {
    if (keep_) lens_.push_back(ToJson(*lens));
    return LensText(*lens);
  }
  if (const auto* stats = std::get_if<protocol::HiddenStatsChunk>(&body)) {
    if (keep_) hidden_stats_ = ToJson(*stats);
    return HiddenStatsText(*stats);
  }
  if (const auto* routes = std::get_if<protocol::RoutesChunk>(&body)) {
    files_.Take(*routes);
    return settings_.debug_routing ? routing_.Take(*routes) : std::string();
  }
  const auto* token = std::get_if<protocol::TokenChunk>(&body);
  return token != nullptr && settings_.debug_routing ? routing_.Take(*token) : std::string();
}

// The answer, which did not stream, comes last.
std::string LookOutput::End(const protocol::RunDone& done) const {
  std::string text = settings_.debug_routing ? routing_.MostUsed() : std::string();
  if (!done.text.empty()) text += "answer: " + done.text + "\n";
  return text;
}

void LookOutput::AddTo(Json& json) const {
  if (settings_.lens) json["lens"] = lens_;
  if (settings_.hidden_stats) json["hidden_stats"] = hidden_stats_;
}

}  // namespace mk::client
