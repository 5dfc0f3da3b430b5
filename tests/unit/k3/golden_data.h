// Recorded runs of tests/data/golden/k3: a model, two prompts, and what an independent engine made
// of them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mk::test {

inline constexpr const char* kGoldenCases[] = {"k3a", "k3b", "k3c"};

struct RouterPick {
  std::vector<int32_t> experts;  // empty: no experts at this layer
  std::vector<float> weights;
};

struct GoldenPrompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> greedy;                  // the continuation
  std::vector<float> logits;                    // [rows][vocab]
  size_t logit_rows = 0;                        // the last greedy.size() + 1, or all
  std::vector<std::vector<RouterPick>> router;  // [position][layer]; short prompt only
};

struct GoldenCase {
  std::string name;
  std::string model_path;
  size_t layers = 0;
  size_t hidden = 0;
  size_t vocab = 0;
  GoldenPrompt short_prompt;
  GoldenPrompt long_prompt;
  // Of the short prompt, [position][layer][hidden].
  std::vector<float> attention;
  std::vector<float> feed_forward;
  std::vector<float> hidden_states;
};

// Reads a case; ends the process with a message when a file is missing, for tests only.
GoldenCase LoadGolden(const std::string& name);

// Largest |a - b|; infinity when the lengths differ.
double MaxDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace mk::test
