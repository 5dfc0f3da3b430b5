// The judge is judged first: the f64 reference against recorded outputs of an independent engine.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/reference/dsv4_reference.h"
#include "tests/reference/random_dsv4.h"

namespace mk::reference {
namespace {

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

class Dsv4Golden : public testing::TestWithParam<std::string> {
 protected:
  Dsv4Golden() : folder_(std::string(MK_TEST_DATA) + "/golden/dsv4/" + GetParam() + "/") {
    std::ifstream stream(folder_ + "golden.json");
    golden_ = nlohmann::ordered_json::parse(stream);
    const auto& arguments = golden_.at("generator").at("args");
    const auto seed = std::find(arguments.begin(), arguments.end(), "--seed");
    const auto path = std::filesystem::temp_directory_path() /
                      ("mk-reference-" + std::to_string(getpid()) + ".bin");
    WriteRandomDsv4(path.string(), golden_.at("config"),
                    std::stoull((seed + 1)->get<std::string>()));
    model_ = ParseMkim(path.string());
    std::filesystem::remove(path);
  }

  const std::string folder_;
  nlohmann::ordered_json golden_;
  ParsedModel model_;
};

// Tolerances: the recordings are f32 with another summation order; f32 against f64 accumulation
// moves their logits by up to 2e-5.
TEST_P(Dsv4Golden, ReferenceReproducesTheShortPromptAndItsContinuation) {
  const auto& prompt = golden_.at("prompts").at("short");
  const std::vector<float> logits = ReadFloats(folder_ + "short.logits.f32");
  const std::vector<float> hidden = ReadFloats(folder_ + "short.hidden.f32");
  const std::vector<float> attention = ReadFloats(folder_ + "short.attn.f32");
  const std::vector<float> feed_forward = ReadFloats(folder_ + "short.ffn.f32");
  std::vector<int> tokens = prompt.at("ids");
  const size_t length = tokens.size();
  const std::vector<int> greedy = prompt.at("exact").at("greedy_ids");
  tokens.insert(tokens.end(), greedy.begin(), greedy.end());

  double worst_logit = 0;
  double worst_value = 0;  // hidden, attention, feed-forward
  Dsv4Reference reference(model_);
  for (size_t t = 0; t < tokens.size(); ++t) {
    const Dsv4Trace trace = reference.Feed(tokens[t]);
    const size_t vocab = trace.logits.size();
    ASSERT_LE((t + 1) * vocab, logits.size());
    worst_logit = std::max(worst_logit, MaxDifference(trace.logits, &logits[t * vocab]));
    if (t >= length) continue;
    const auto& router = prompt.at("exact").at("router").at(t);
    for (size_t l = 0; l < trace.hidden.size(); ++l) {
      const size_t at = t * trace.hidden.size() + l;
      const size_t width = trace.attention[l].size();
      worst_value = std::max({worst_value,
                              MaxDifference(trace.hidden[l], &hidden[at * trace.hidden[l].size()]),
                              MaxDifference(trace.attention[l], &attention[at * width]),
                              MaxDifference(trace.feed_forward[l], &feed_forward[at * width])});
      EXPECT_EQ(trace.experts[l], router.at(l).at("ids").get<std::vector<int>>());
    }
  }
  EXPECT_LT(worst_logit, 1e-4);
  EXPECT_LT(worst_value, 5e-5);
  std::printf("%s f64 - recorded: logits %.2e, hidden, attn and ffn %.2e\n", GetParam().c_str(),
              worst_logit, worst_value);
}

INSTANTIATE_TEST_SUITE_P(Cases, Dsv4Golden, testing::Values("d1", "d2", "d3"));

}  // namespace
}  // namespace mk::reference
