// The logit lens of a text as a picture: a column per token, a row per layer, the last on top; in
// each cell what the model would say next if it ended there.

#pragma once

#include <string>
#include <vector>

#include "protocol/messages.h"

namespace mk::client {

struct LensPicture {
  enum class Colour { kProbability, kEntropy };

  std::string model;     // its name
  std::string settings;  // precision and the like
  Colour colour = Colour::kProbability;
  double largest_entropy = 1;  // of the vocabulary, in nats
  size_t left_out = 0;         // tokens before the first column
  std::vector<protocol::LensChunk> columns;
};

// SVG. There is at least one column, and all have the same layers.
std::string Draw(const LensPicture& picture);

}  // namespace mk::client
