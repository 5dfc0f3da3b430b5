// Recorded runs of tests/data/golden: a model, two prompts, and what an independent engine made of
// them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mk::test {

inline constexpr const char* kK3Cases[] = {"k3a", "k3b", "k3c"};
inline constexpr const char* kDsv4Cases[] = {"d1", "d2", "d3"};

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
  std::string model_path;         // k3; the models of dsv4 are made when they are needed
  nlohmann::ordered_json config;  // of the model
  uint64_t seed = 0;              // of its random values
  std::string model_sha256;
  size_t layers = 0;
  size_t hidden = 0;
  size_t streams = 1;
  size_t vocab = 0;
  GoldenPrompt short_prompt;
  GoldenPrompt long_prompt;
  // Of the short prompt, [position][layer][hidden].
  std::vector<float> attention;
  std::vector<float> feed_forward;
  std::vector<float> hidden_states;  // [position][layer][streams][hidden]
  // dsv4, of the long prompt's last position: what each layer attends to. Numbers below the window
  // are slots of a ring, -1 none; the others are the window plus the index of a compressed row.
  std::vector<std::vector<int32_t>> attended;
};

// Reads a case of an architecture ("k3", "dsv4"); ends the process with a message when a file is
// missing, for tests only.
GoldenCase LoadGolden(const std::string& architecture, const std::string& name);

// Largest |a - b|; infinity when the lengths differ.
double MaxDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace mk::test
