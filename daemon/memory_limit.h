// How much memory there is for us: the machine's, and what control groups allow.

#pragma once

#include <cstdint>
#include <filesystem>

namespace mk::daemon {

// The smallest limit of our control group and of all groups above it that can be seen, in version 1
// and 2 of the kernel's interface; UINT64_MAX without one. `root`: where proc and the mounted
// hierarchies are looked for; tests give their own.
uint64_t CgroupMemoryLimit(const std::filesystem::path& root = "/");

// Budget when the user names none: three quarters of what the machine has, or of what the control
// groups allow if that is less.
uint64_t DefaultMemoryBudget(const std::filesystem::path& root = "/");

}  // namespace mk::daemon
