#include "engine/shadow/shadow_checkpoint.h"

#include <nlohmann/json.hpp>
#include <span>

#include "engine/format/digest.h"

namespace mk {

using nlohmann::json;

std::string ShadowCheckpoint::Encode() const {
  return json{{"fingerprint", fingerprint},
              {"version", version},
              {"stages", stages},
              {"layers", layers},
              {"digest", digest},
              {"error_sum", error_sum},
              {"weight_energy", weight_energy},
              {"shadow_energy", shadow_energy}}
      .dump();
}

std::optional<ShadowCheckpoint> ShadowCheckpoint::Decode(const std::string& bytes) {
  const json told = json::parse(bytes, nullptr, false);
  if (!told.is_object()) return std::nullopt;
  for (const char* name : {"version", "stages", "layers", "digest"}) {
    if (!told.contains(name) || !told[name].is_number_unsigned()) return std::nullopt;
  }
  for (const char* name : {"error_sum", "weight_energy", "shadow_energy"}) {
    if (!told.contains(name) || !told[name].is_number()) return std::nullopt;
  }
  if (!told.contains("fingerprint") || !told["fingerprint"].is_string()) return std::nullopt;
  ShadowCheckpoint checkpoint;
  checkpoint.fingerprint = told["fingerprint"].get<std::string>();
  checkpoint.version = told["version"].get<uint32_t>();
  checkpoint.stages = told["stages"].get<uint32_t>();
  checkpoint.layers = told["layers"].get<uint64_t>();
  checkpoint.digest = told["digest"].get<uint64_t>();
  checkpoint.error_sum = told["error_sum"].get<double>();
  checkpoint.weight_energy = told["weight_energy"].get<double>();
  checkpoint.shadow_energy = told["shadow_energy"].get<double>();
  return checkpoint;
}

uint64_t CombineDigests(uint64_t before, uint64_t next) {
  const uint64_t both[] = {before, next};
  return Xxh3Of(std::as_bytes(std::span(both)));
}

}  // namespace mk
