// Random K3 files for parity tests: any dimensions, every expert encoding, written byte by byte
// here so that neither the engine's writer nor its codecs take part.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace mk::reference {

// How the routed experts of a random model are stored.
enum class ExpertKind { kMxfp4, kMxfp4Sq, kVq1, kF32, kMixed };

// A config in which no two dimensions are equal where a mix-up of axes could hide: 13 layers in
// residual blocks of 3, P != d, M*v != d.
nlohmann::json AwkwardConfig();

// Writes a model of this config. The same arguments give the same bytes.
void WriteRandomK3(const std::string& path, const nlohmann::json& config, ExpertKind kind,
                   uint64_t seed);

}  // namespace mk::reference
