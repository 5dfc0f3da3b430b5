// Why experts are expected to be needed soon.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mk {

enum class PrefetchSource : uint8_t {
  kTable,      // the tokens say so: hash layers
  kDraft,      // guessed tokens were routed so before
  kLookahead,  // the router of a later layer on the input of this one
  kMarkov,     // what followed the experts of this layer before
  kSession,    // what a similar session asked for
};
inline constexpr size_t kPrefetchSources = 5;

// "table", "draft", "lookahead", "markov", "session".
constexpr std::string_view PrefetchSourceName(PrefetchSource source) {
  constexpr std::string_view kNames[] = {"table", "draft", "lookahead", "markov", "session"};
  return kNames[static_cast<size_t>(source)];
}

}  // namespace mk
