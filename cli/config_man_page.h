// The manual of the config file, in roff, with the man macros.

#pragma once

#include <string>

namespace mk::cli {

// The keys as tagged paragraphs.
std::string ConfigKeyList();
// microkimi-config.toml(5). `version`: of the programs.
std::string ConfigManPage(const std::string& version);

}  // namespace mk::cli
