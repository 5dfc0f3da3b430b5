#include "tests/unit/k3/golden_data.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

namespace mk::test {
namespace {

using Json = nlohmann::json;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::abort();
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> ReadFloats(const std::string& path) {
  const std::string bytes = ReadFile(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), values.size() * sizeof(float), reinterpret_cast<char*>(values.data()));
  return values;
}

GoldenPrompt ReadPrompt(const Json& json, const std::string& logits_path, size_t vocab) {
  GoldenPrompt prompt;
  json.at("ids").get_to(prompt.ids);
  json.at("exact").at("greedy_ids").get_to(prompt.greedy);
  prompt.logits = ReadFloats(logits_path);
  prompt.logit_rows = prompt.logits.size() / vocab;
  for (const Json& position : json.at("exact").value("router", Json::array())) {
    std::vector<RouterPick>& layers = prompt.router.emplace_back();
    for (const Json& layer : position) {
      RouterPick& pick = layers.emplace_back();
      if (layer.is_null()) continue;
      layer.at("ids").get_to(pick.experts);
      layer.at("w").get_to(pick.weights);
    }
  }
  return prompt;
}

}  // namespace

GoldenCase LoadGolden(const std::string& name) {
  const std::string dir = std::string(MK_TEST_DATA) + "/golden/k3/" + name + "/";
  const Json json = Json::parse(ReadFile(dir + "golden.json"));
  GoldenCase golden;
  golden.name = name;
  golden.model_path = dir + "model.bin";
  golden.layers = json.at("config").at("n_layers");
  golden.hidden = json.at("config").at("hidden");
  golden.vocab = json.at("config").at("vocab");
  const Json& prompts = json.at("prompts");
  golden.short_prompt = ReadPrompt(prompts.at("short"), dir + "short.logits.f32", golden.vocab);
  golden.long_prompt = ReadPrompt(prompts.at("long"), dir + "long.logits.f32", golden.vocab);
  golden.attention = ReadFloats(dir + "short.attn.f32");
  golden.feed_forward = ReadFloats(dir + "short.ffn.f32");
  golden.hidden_states = ReadFloats(dir + "short.hidden.f32");
  return golden;
}

double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= most)) most = difference;  // keeps a NaN
  }
  return most;
}

}  // namespace mk::test
