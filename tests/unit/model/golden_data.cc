#include "tests/unit/model/golden_data.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

namespace mk::test {
namespace {

using Json = nlohmann::ordered_json;

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

GoldenCase LoadGolden(const std::string& architecture, const std::string& name) {
  const std::string dir = std::string(MK_TEST_DATA) + "/golden/" + architecture + "/" + name + "/";
  const Json json = Json::parse(ReadFile(dir + "golden.json"));
  GoldenCase golden;
  golden.name = name;
  golden.model_path = dir + "model.bin";
  golden.config = json.at("config");
  const Json& arguments = json.at("generator").at("args");
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == "--seed") golden.seed = std::stoull(arguments[i + 1].get<std::string>());
  }
  golden.model_sha256 = json.at("files").at("model.bin").at("sha256");
  const bool streams = golden.config.contains("ds");
  const Json& dimensions = streams ? golden.config.at("ds") : golden.config;
  golden.layers = dimensions.at("n_layers");
  golden.hidden = dimensions.at("hidden");
  golden.vocab = dimensions.at("vocab");
  golden.streams = streams ? 4 : 1;
  const Json& prompts = json.at("prompts");
  golden.short_prompt = ReadPrompt(prompts.at("short"), dir + "short.logits.f32", golden.vocab);
  golden.long_prompt = ReadPrompt(prompts.at("long"), dir + "long.logits.f32", golden.vocab);
  const Json& exact = prompts.at("long").at("exact");
  if (exact.contains("attn_positions_last_prompt")) {
    exact.at("attn_positions_last_prompt").get_to(golden.attended);
  }
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
