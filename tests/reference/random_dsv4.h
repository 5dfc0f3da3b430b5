// Random DeepSeek-V4 files for tests: any dimensions, written byte by byte here so that neither the
// engine's writer nor its codecs take part.
//
// Values come from Philox 4x64 counters keyed by SHA-256 of seed and tensor name, and bell-shaped
// ones are sums of four 16-bit uniforms: the same bytes on every machine. The models of
// tests/data/golden/dsv4 were made by this recipe, and are made again by it when a test needs them.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace mk::reference {

// Config of a model in which every dimension differs from its neighbours, of `layers` layers with
// the ratios 0, 4, 8, 4, 0, 16 in turn.
nlohmann::ordered_json AwkwardDsv4Config();

// How far the outputs of a model's parts are damped: 1 leaves them as they are. A rounding of FP8
// or FP4 that falls to the other side moves everything after it; damped, it moves it little.
struct Dsv4Damping {
  double outputs = 1;
};

// Writes a model of this config (the whole block, with "ds"). The same arguments give the same
// bytes. Keys that are left out of the config have their defaults.
void WriteRandomDsv4(const std::string& path, const nlohmann::ordered_json& config, uint64_t seed,
                     const Dsv4Damping& damping = {});

}  // namespace mk::reference
