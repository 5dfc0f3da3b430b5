// What runs show of the model at work, as text: logit lens, sizes of hidden states, experts.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/messages.h"

namespace mk::client {

// A token in single quotes; backslash, newline, tab, quote and what a terminal would act upon
// escaped.
std::string Quoted(std::string_view token);
// The same for a token that may have no text: "#42".
std::string QuotedOr(std::string_view token, int32_t id);

// A table: a line per layer with its likeliest tokens, and rank and probability of the one that
// came next.
std::string LensText(const protocol::LensChunk& lens);

std::string HiddenStatsText(const protocol::HiddenStatsChunk& stats);

// "17.3 %", "0.02 %", "<0.01 %".
std::string PercentText(double share);

// The experts that tokens of the answer went to, a line per token, and the most used ones.
class RoutingText {
 public:
  // Lines that are whole now, perhaps none.
  std::string Take(const protocol::TokenChunk& token);
  std::string Take(const protocol::RoutesChunk& routes);
  // The ten (layer, expert) pairs that were picked most often, those of the prompt included.
  std::string MostUsed() const;

 private:
  std::string Ready();

  // Tokens and routes come apart, and either may come first; they belong together by position.
  std::deque<std::pair<uint64_t, std::string>> tokens_;  // index, text
  std::deque<protocol::RoutesChunk> routes_;             // of the answer
  std::optional<uint64_t> last_read_;                    // position of what was read last
  std::optional<uint64_t> first_;                        // position of the first generated token
  bool generating_ = false;
  std::map<std::pair<uint32_t, int32_t>, uint64_t> counts_;
};

}  // namespace mk::client
