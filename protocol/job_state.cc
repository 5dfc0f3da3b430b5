#include <algorithm>
#include <array>

#include "protocol/job_messages.h"

namespace mk::protocol {
namespace {

// In the order of JobState.
constexpr std::array<std::string_view, kJobStates> kNames = {"queued", "running",   "done",
                                                             "failed", "cancelled", "interrupted"};
static_assert(static_cast<size_t>(JobState::kInterrupted) + 1 == kJobStates);

bool IsLetter(char c) {
  return c >= 'a' && c <= 'z';
}

}  // namespace

std::string_view NameOf(JobState state) {
  return kNames[static_cast<size_t>(state)];
}

std::optional<JobState> JobStateFromName(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<JobState>(found - kNames.begin());
}

bool IsJobId(std::string_view text) {
  return text.size() == kJobIdBytes && IsLetter(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return IsLetter(c) || (c >= '0' && c <= '9'); });
}

}  // namespace mk::protocol
