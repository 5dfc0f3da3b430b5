// The judge is judged first: the f64 reference against recorded outputs of an independent engine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/reference/k3_reference.h"

namespace mk::reference {
namespace {

std::string CaseFolder(const std::string& name) {
  return std::string(MK_TEST_DATA) + "/golden/k3/" + name + "/";
}

std::vector<float> ReadFloats(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(stream)), {});
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

double MaxDifference(const Vector& ours, const float* recorded) {
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(ours[i] - static_cast<double>(recorded[i])));
  }
  return worst;
}

class K3Golden : public testing::TestWithParam<std::string> {};

// Tolerances: the recordings are f32 with another summation order; f32 against f64 accumulation
// moves their logits by up to 7e-5 and their hidden values by up to 5e-5.
TEST_P(K3Golden, ReferenceReproducesTheShortPromptAndItsContinuation) {
  const std::string folder = CaseFolder(GetParam());
  std::ifstream stream(folder + "golden.json");
  const nlohmann::json golden = nlohmann::json::parse(stream).at("prompts").at("short");
  const ParsedModel parsed = ParseMkim(folder + "model.bin");
  const std::vector<float> logits = ReadFloats(folder + "short.logits.f32");
  const std::vector<float> hidden = ReadFloats(folder + "short.hidden.f32");
  const std::vector<float> attention = ReadFloats(folder + "short.attn.f32");
  const std::vector<float> feed_forward = ReadFloats(folder + "short.ffn.f32");
  std::vector<int> tokens = golden.at("ids");
  const size_t prompt = tokens.size();
  const std::vector<int> greedy = golden.at("exact").at("greedy_ids");
  tokens.insert(tokens.end(), greedy.begin(), greedy.end());

  double worst_logit = 0;
  double worst_value = 0;  // hidden, attention, feed-forward
  K3Reference reference(parsed);
  for (size_t t = 0; t < tokens.size(); ++t) {
    const TokenTrace trace = reference.Feed(tokens[t]);
    const size_t vocab = trace.logits.size();
    if ((t + 1) * vocab <= logits.size()) {
      const double difference = MaxDifference(trace.logits, &logits[t * vocab]);
      EXPECT_LT(difference, 2e-4) << "position " << t;
      worst_logit = std::max(worst_logit, difference);
    }
    if (t >= prompt) continue;
    for (size_t l = 0; l < trace.hidden.size(); ++l) {
      const size_t width = trace.hidden[l].size();
      const size_t at = (t * trace.hidden.size() + l) * width;
      const double difference = std::max({MaxDifference(trace.hidden[l], &hidden[at]),
                                          MaxDifference(trace.attention[l], &attention[at]),
                                          MaxDifference(trace.feed_forward[l], &feed_forward[at])});
      EXPECT_LT(difference, 1e-4) << "position " << t << " layer " << l;
      worst_value = std::max(worst_value, difference);
    }
  }
  std::printf("%s f64 - recorded: logits %.2e, hidden, attn and ffn %.2e\n", GetParam().c_str(),
              worst_logit, worst_value);
}

INSTANTIATE_TEST_SUITE_P(Cases, K3Golden, testing::Values("k3a", "k3b", "k3c"));

}  // namespace
}  // namespace mk::reference
