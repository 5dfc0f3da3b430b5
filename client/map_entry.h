// A number of the daemon's, by its name.

#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace mk::client {

// 0 for a name that is not there: daemons of other versions count other things.
inline uint64_t Entry(const std::map<std::string, uint64_t>& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? 0 : found->second;
}

}  // namespace mk::client
