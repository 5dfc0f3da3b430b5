// Reads the DeepSeek-V4 part of a config. For config.cc.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/format/config.h"
#include "engine/format/config_reader.h"

namespace mk {

// Sets config.ds and the dimensions that it shares with other architectures. `top` reads the whole
// config block. Problems are kept in `top`.
void ReadDeepSeekConfig(ConfigReader& top, const std::string& what, const ConfigOptions& options,
                        MkimConfig& config, std::vector<std::string>& warnings);

// Whether a key belongs into "ds".
bool IsDeepSeekKey(std::string_view key);

}  // namespace mk
