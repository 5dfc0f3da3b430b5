// Which model a request is about, and in which arithmetic. Included by messages.h.

#pragma once

#include <string>

namespace mk::protocol {

// Arithmetic of a request: "exact", "bf16", "q8", or this for the daemon's setting.
inline constexpr const char* kAutoPrecision = "auto";

// Which model, and with which vocabulary.
struct ModelSelector {
  std::string model;      // path, alias or name; "": the default model
  std::string vocab;      // vocabulary JSON; "": the one beside the model
  std::string rank_file;  // tiktoken ranks; "": the ones beside the model
  bool operator==(const ModelSelector&) const = default;
};

}  // namespace mk::protocol
