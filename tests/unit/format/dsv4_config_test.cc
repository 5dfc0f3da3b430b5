// The DeepSeek-V4 part of a config: what it means, what is taken for a missing key, what is
// refused.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/format/config.h"

namespace mk::test {
namespace {

using nlohmann::json;

json Config() {
  return {{"arch", "deepseek_v4"},
          {"vocab", 264},
          {"n_layers", 5},
          {"specials", {{"bos", 256}, {"end_of_msg", 257}}},
          {"ds",
           {{"n_layers", 5},
            {"hidden", 64},
            {"vocab", 264},
            {"n_heads", 4},
            {"head_dim", 32},
            {"qk_rope_head_dim", 16},
            {"q_lora_rank", 24},
            {"o_lora_rank", 12},
            {"o_groups", 2},
            {"sliding_window", 16},
            {"compress_ratios", {0, 0, 4, 8, 4, 0, 0}},
            {"rope_theta", 5000},
            {"compress_rope_theta", 40000.0},
            {"index_n_heads", 2},
            {"index_head_dim", 32},
            {"index_topk", 3},
            {"n_routed_experts", 8},
            {"num_experts_per_tok", 2},
            {"moe_intermediate_size", 32},
            {"num_hash_layers", 1},
            {"routed_scaling_factor", 2.5},
            {"swiglu_limit", 7},
            {"rms_norm_eps", 1e-5},
            {"hc_mult", 3},
            {"hc_sinkhorn_iters", 9},
            {"hc_eps", 1e-5},
            {"yarn_factor", 4},
            {"yarn_beta_fast", 16},
            {"yarn_beta_slow", 2},
            {"yarn_orig_seq_len", 4096},
            {"max_seq_len", 100000},
            {"act_qat", false}}}};
}

struct Parsed {
  Result<MkimConfig> config;
  std::vector<std::string> warnings;
};

Parsed Parse(const json& config, bool require_all = false) {
  std::vector<std::string> warnings;
  ConfigOptions options;
  options.require_all_dimensions = require_all;
  Result<MkimConfig> parsed = ParseConfig(config.dump(), "config", options, warnings);
  return {std::move(parsed), std::move(warnings)};
}

std::string ErrorOf(const json& config) {
  const Parsed parsed = Parse(config);
  return parsed.config ? "" : parsed.config.error().message;
}

TEST(Dsv4Config, EveryKeyIsRead) {
  const Parsed parsed = Parse(Config(), true);
  ASSERT_TRUE(parsed.config) << parsed.config.error().ToString();
  EXPECT_TRUE(parsed.warnings.empty());
  const MkimConfig& c = *parsed.config;
  EXPECT_EQ(c.arch, Architecture::kDeepSeekV4);
  EXPECT_EQ(c.n_layers, 5u);
  EXPECT_EQ(c.hidden, 64u);
  EXPECT_EQ(c.vocab, 264u);
  EXPECT_EQ(c.n_experts, 8u);
  EXPECT_EQ(c.top_k, 2u);
  EXPECT_EQ(c.moe_inter, 32u);
  EXPECT_EQ(c.rms_eps, 1e-5f);
  EXPECT_EQ(c.routed_scale, 2.5f);
  EXPECT_EQ(c.specials.bos, 256);
  EXPECT_EQ(c.specials.end_of_msg, 257);
  EXPECT_EQ(c.ds.n_heads, 4u);
  EXPECT_EQ(c.ds.head_dim, 32u);
  EXPECT_EQ(c.ds.rope_dim, 16u);
  EXPECT_EQ(c.ds.q_lora_rank, 24u);
  EXPECT_EQ(c.ds.o_lora_rank, 12u);
  EXPECT_EQ(c.ds.o_groups, 2u);
  EXPECT_EQ(c.ds.sliding_window, 16u);
  EXPECT_EQ(c.ds.compress_ratios, (std::vector<uint32_t>{0, 0, 4, 8, 4}));
  EXPECT_EQ(c.ds.rope_theta, 5000.0f);
  EXPECT_EQ(c.ds.compress_rope_theta, 40000.0f);
  EXPECT_EQ(c.ds.index_n_heads, 2u);
  EXPECT_EQ(c.ds.index_head_dim, 32u);
  EXPECT_EQ(c.ds.index_topk, 3u);
  EXPECT_EQ(c.ds.n_hash_layers, 1u);
  EXPECT_EQ(c.ds.swiglu_limit, 7.0f);
  EXPECT_EQ(c.ds.hc_mult, 3u);
  EXPECT_EQ(c.ds.hc_sinkhorn_iters, 9u);
  EXPECT_EQ(c.ds.hc_eps, 1e-5f);
  EXPECT_EQ(c.ds.yarn_factor, 4.0f);
  EXPECT_EQ(c.ds.yarn_beta_fast, 16.0f);
  EXPECT_EQ(c.ds.yarn_beta_slow, 2.0f);
  EXPECT_EQ(c.ds.yarn_orig_seq_len, 4096u);
  EXPECT_EQ(c.ds.max_seq_len, 100000u);
  EXPECT_FALSE(c.ds.act_qat);
}

TEST(Dsv4Config, MissingKeysHaveTheDimensionsOfTheMicroModel) {
  const Parsed parsed = Parse({{"arch", "deepseek_v4"}, {"ds", json::object()}});
  ASSERT_TRUE(parsed.config) << parsed.config.error().ToString();
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_NE(parsed.warnings[0].find("head_dim = 128"), std::string::npos) << parsed.warnings[0];
  const MkimConfig& c = *parsed.config;
  EXPECT_EQ(c.n_layers, 43u);
  EXPECT_EQ(c.hidden, 512u);
  EXPECT_EQ(c.vocab, 129280u);
  EXPECT_EQ(c.n_experts, 256u);
  EXPECT_EQ(c.top_k, 6u);
  EXPECT_EQ(c.moe_inter, 128u);
  EXPECT_EQ(c.rms_eps, 1e-6f);
  EXPECT_EQ(c.routed_scale, 1.5f);
  EXPECT_EQ(c.specials.bos, 0);
  EXPECT_EQ(c.specials.end_of_msg, 1);
  EXPECT_EQ(c.ds.hc_mult, 4u);
  EXPECT_EQ(c.ds.hc_sinkhorn_iters, 20u);
  EXPECT_EQ(c.ds.max_seq_len, 0u);
  EXPECT_TRUE(c.ds.act_qat);
  ASSERT_EQ(c.ds.compress_ratios.size(), 43u);
  for (size_t l = 0; l < 43; ++l) {
    EXPECT_EQ(c.ds.compress_ratios[l], l < 2 ? 0u : l % 2 == 0 ? 4u : 128u) << l;
  }
}

TEST(Dsv4Config, TheKeysMayStandAtTopLevel) {
  json config = Config();
  json flat = config["ds"];
  flat["arch"] = "deepseek_v4";
  flat["specials"] = config["specials"];
  const Parsed parsed = Parse(flat);
  ASSERT_TRUE(parsed.config) << parsed.config.error().ToString();
  EXPECT_TRUE(parsed.warnings.empty()) << parsed.warnings[0];
  EXPECT_EQ(parsed.config->ds.head_dim, 32u);
  EXPECT_EQ(parsed.config->hidden, 64u);
  flat.erase("n_routed_experts");
  EXPECT_NE(ErrorOf(flat).find("object \"ds\""), std::string::npos);
}

TEST(Dsv4Config, SharedKeysMayStandInEitherPlaceButNotDiffer) {
  for (const char* key : {"n_layers", "vocab"}) {
    json config = Config();
    config.erase(key);
    EXPECT_EQ(ErrorOf(config), "");
    config = Config();
    config["ds"].erase(key);
    EXPECT_EQ(ErrorOf(config), "");
    config = Config();
    config[key] = 300;
    EXPECT_NE(ErrorOf(config).find("at top level"), std::string::npos) << key;
  }
}

TEST(Dsv4Config, AShortListOfRatiosGoesOnWithZeros) {
  json config = Config();
  config["ds"]["compress_ratios"] = {0, 4};
  const Parsed parsed = Parse(config);
  ASSERT_TRUE(parsed.config);
  EXPECT_EQ(parsed.config->ds.compress_ratios, (std::vector<uint32_t>{0, 4, 0, 0, 0}));
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_NE(parsed.warnings[0].find("2 entries for 5 layers"), std::string::npos);
}

TEST(Dsv4Config, UnknownKeysAreNamed) {
  json config = Config();
  config["ds"]["banana"] = 1;
  const Parsed parsed = Parse(config);
  ASSERT_TRUE(parsed.config);
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_NE(parsed.warnings[0].find("ds.banana"), std::string::npos);
}

TEST(Dsv4Config, MissingDimensionsAreAnErrorWhenAskedFor) {
  json config = Config();
  config["ds"].erase("head_dim");
  const Parsed parsed = Parse(config, true);
  ASSERT_FALSE(parsed.config);
  EXPECT_NE(parsed.config.error().message.find("\"ds.head_dim\" is missing"), std::string::npos);
}

TEST(Dsv4Config, RowsOfTheOutputGroupsAreLimited) {
  json config = Config();
  config["ds"]["n_heads"] = config["ds"]["o_groups"] = 4096;
  config["ds"]["o_lora_rank"] = 4096;
  EXPECT_EQ(ErrorOf(config), "");
  config["ds"]["o_lora_rank"] = 4097;
  EXPECT_NE(ErrorOf(config).find("o_groups times o_lora_rank is 16781312"), std::string::npos);
}

struct Refused {
  const char* name;
  const char* key;
  json value;
  const char* text;
};

void PrintTo(const Refused& refused, std::ostream* out) {
  *out << refused.name;
}

class Dsv4ConfigRefuses : public testing::TestWithParam<Refused> {};

TEST_P(Dsv4ConfigRefuses, WhatCannotBeRun) {
  json config = Config();
  config["ds"][GetParam().key] = GetParam().value;
  const std::string error = ErrorOf(config);
  EXPECT_NE(error.find(GetParam().text), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(
    Values, Dsv4ConfigRefuses,
    testing::Values(
        Refused{"no_width", "hidden", 0, "ds.hidden"},
        Refused{"wide", "hidden", (1 << 20) + 1, "ds.hidden"},
        Refused{"width_of_48", "hidden", 48, "hidden is 48, it must be a multiple of 32"},
        Refused{"no_experts", "n_routed_experts", 0, "ds.n_routed_experts"},
        Refused{"experts", "n_routed_experts", 65537, "ds.n_routed_experts"},
        Refused{"no_picks", "num_experts_per_tok", 0, "ds.num_experts_per_tok"},
        Refused{"picks", "num_experts_per_tok", 9, "num_experts_per_tok 9 exceeds"},
        Refused{"inner_of_40", "moe_intermediate_size", 40, "moe_intermediate_size is 40"},
        Refused{"no_heads", "n_heads", 0, "ds.n_heads"},
        Refused{"groups", "o_groups", 3, "o_groups 3 does not divide n_heads 4"},
        Refused{"odd_rope", "qk_rope_head_dim", 15, "qk_rope_head_dim is 15"},
        Refused{"wide_rope", "qk_rope_head_dim", 34, "qk_rope_head_dim is 34"},
        Refused{"no_window", "sliding_window", 0, "ds.sliding_window"},
        Refused{"index_dim", "index_head_dim", 48, "index_head_dim is 48"},
        Refused{"small_index_dim", "index_head_dim", 16, "ds.index_head_dim"},
        Refused{"no_topk", "index_topk", 0, "ds.index_topk"},
        Refused{"hash_layers", "num_hash_layers", 6, "num_hash_layers 6 exceeds n_layers 5"},
        Refused{"ratio_of_one", "compress_ratios", {0, 1}, "compress_ratios has a 1"},
        Refused{"negative_ratio", "compress_ratios", {0, -4}, "ds.compress_ratios"},
        Refused{"large_ratio", "compress_ratios", {0, 65537}, "ds.compress_ratios"},
        Refused{"ratios_no_list", "compress_ratios", 4, "ds.compress_ratios"},
        Refused{"no_streams", "hc_mult", 0, "ds.hc_mult"},
        Refused{"streams", "hc_mult", 17, "ds.hc_mult"},
        Refused{"no_iterations", "hc_sinkhorn_iters", 0, "ds.hc_sinkhorn_iters"},
        Refused{"theta", "rope_theta", 1, "ds.rope_theta"},
        Refused{"epsilon", "rms_norm_eps", 0, "ds.rms_norm_eps"},
        Refused{"mix_epsilon", "hc_eps", -1, "ds.hc_eps"},
        Refused{"yarn", "yarn_factor", 0, "ds.yarn_factor"},
        Refused{"no_length", "max_seq_len", 0, "ds.max_seq_len"},
        Refused{"round_number", "act_qat", 1, "ds.act_qat"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mk::test
